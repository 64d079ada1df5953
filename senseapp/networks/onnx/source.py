"""The source ``onnx``: an uploaded ONNX file as a model, and the report on the file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from senseapp.core.errors import InvalidSpec, SenseError, UnsupportedModel
from senseapp.core.texts import plural
from senseapp.networks.loaded import LoadedModel, Preprocessing, check_side
from senseapp.networks.network import abilities_of
from senseapp.networks.onnx import metadata
from senseapp.networks.onnx.modules import ImageInput
from senseapp.networks.onnx.open import OpenedOnnx, open_onnx
from senseapp.networks.onnx.torch_graph import UnreadNode
from senseapp.networks.onnx.upload import read_file
from senseapp.networks.profile import compressible_weights
from senseapp.networks.sources.catalogue import IMAGENET_CLASSES
from senseapp.networks.sources.libraries import imagenet_class_names
from senseapp.records.inputs import OnnxReport, OutputFacts
from senseapp.records.spec import ModelSpec
from senseapp.tasks import TASKS, Task, task_named
from senseapp.tasks.reading import OutputReader

_ANSWERS = ("logit", "prob", "score", "class", "cls", "pred", "softmax")  # in names of outputs of classifiers
_SHOWN = 8  # inputs or outputs in a sentence; detectors have six to nine


def load_onnx(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return the network of the ONNX file that ``spec`` names, for images (N, C, H, W).

    Raises:
        InvalidSpec: a setting that the file decides, or no file.
        InvalidCheckpoint: the file cannot be read; and all that :func:`~senseapp.networks.onnx.open.open_onnx` raises.
        UnsupportedModel: its input is no images, or no output is one of the task.
    """
    report("Reading the ONNX file")
    opened = _fitted(_read(spec), spec)
    _check_layers(opened)
    task = task_named(spec.task)
    prepared = metadata.usual_preparation(opened, is_classifier=task.prepared_by_answers)
    opened.network.images = ImageInput(
        channels_last=metadata.is_channels_last(opened.input_shape), dtype=opened.input_dtype, batch=opened.batch
    )
    readers = _readers_of(task, opened, prepared.preprocessing, spec.layout)
    reader = opened.network.reader = readers[0] if readers else None
    usual = {each.usual_input for each in readers}
    prepared = prepared.of_family(usual.pop() if len(usual) == 1 else None)
    num_outputs = _num_outputs(task, opened, reader)
    usual_names = imagenet_class_names() if num_outputs == IMAGENET_CLASSES else ()
    how = prepared.preprocessing
    if usual_names and prepared.evidence in ("assumed", "graph"):  # published networks get the middle of a picture
        how = replace(how, crop_pct=how.USUAL_CROP)
    return LoadedModel(
        module=opened.network.requires_grad_(False),
        title=Path(spec.checkpoint).name,
        preprocessing=how,
        prepared_as=prepared.words,
        preparation_evidence=prepared.evidence,
        readers=readers,
        background=reader.background if reader else "unknown",
        num_classes=num_outputs,
        pretrained=True,
        class_names=metadata.class_names_in(opened.metadata, num_outputs) or usual_names,
        notes=(
            *_notes(opened, spec),
            *((f"Its outputs are read as {reader.words}.",) if reader else ()),
            *prepared.notes,
        ),
        onnx=opened,
    )


def examine_onnx(spec: ModelSpec) -> OnnxReport:
    """Return the contents of the file of ``spec``, read as :func:`load_onnx` reads it.

    The errors are the same, but for what a choice may change: outputs that do not fit the task, and nodes that only
    onnxruntime computes. The report says so.
    """
    unread = ""
    try:
        opened = _read(spec)
    except UnreadNode as error:
        unread, spec = str(error), replace(spec, in_runtime=True)
        try:
            opened = _read(spec)
        except SenseError:  # then there is no choice to offer
            raise error from None
    problem, fitting = "", tuple[str, ...]()
    try:
        opened = _fitted(opened, spec)
        _num_outputs(task_named(spec.task), opened, None)
    except UnsupportedModel as error:
        problem, fitting = str(error), fitting_tasks(opened)
    return OnnxReport(
        spec=spec,
        input_name=opened.input_name,
        input_shape=opened.input_shape,
        channels_last=metadata.is_channels_last(opened.input_shape),
        free_axes=opened.free_axes,
        batch=opened.batch,
        outputs=opened.outputs,
        candidates=opened.candidates,
        notes=tuple(_notes(opened, spec)),
        problem=problem,
        fitting_tasks=fitting,
        unread=unread,
        barrier=opened.barrier,
        in_runtime=opened.network.in_runtime,
    )


def _read(spec: ModelSpec) -> OpenedOnnx:
    """Return the file of ``spec`` with the outputs that it names, else with the usual ones."""
    _check_settings(spec)
    opened = _opened(spec, spec.outputs or None)
    _check_input(opened, spec)
    return opened


def _opened(spec: ModelSpec, outputs: Sequence[str] | None, side: int | None = None) -> OpenedOnnx:
    """Return the file for images of the size that ``spec`` or, where it is free, the file's metadata name."""
    side = side or spec.img_size
    opened = open_onnx(
        read_file(Path(spec.checkpoint)),
        outputs=outputs,
        size=None if side is None else (side, side),
        usual_side=task_named(spec.task).usual_side,
        in_runtime=spec.in_runtime,
    )
    told = metadata.side_in(opened.metadata)
    is_free = set(opened.free_axes) >= ({1, 2} if metadata.is_channels_last(opened.input_shape) else {2, 3})
    if side is None and is_free and told not in (None, opened.size[0]):
        return _opened(spec, outputs, told)
    return opened


def _fitted(opened: OpenedOnnx, spec: ModelSpec) -> OpenedOnnx:
    """Return the file with outputs of the task, where ``spec`` names none; else raise UnsupportedModel."""
    if not spec.outputs:
        wanted = _outputs_of(task_named(spec.task), opened)
        if wanted != opened.outputs:
            opened = _opened(spec, wanted)
    outputs = [each for each in opened.candidates if each.name in opened.outputs]
    if (opened.batch or 1) > 1 and any(each.shape[:1] != (opened.batch,) for each in outputs):
        raise UnsupportedModel(
            f"The file is fixed to {opened.batch} images at a time, and an output does not list them one by one. "
            "Export it for one image, or for any number."
        )
    return opened


def _check_settings(spec: ModelSpec) -> None:
    if not spec.checkpoint:
        raise InvalidSpec("A model of the source onnx is a file: give one, or choose a model by name.")
    told = {
        "published weights": spec.pretrained,
        "a network in it": spec.network,
        "a number of classes": spec.num_classes,
        "a number of channels": spec.in_chans,
    }
    if setting := next((what for what, value in told.items() if value), ""):
        raise InvalidSpec(
            f"An ONNX file brings its own weights and sizes, so {setting} cannot be chosen. Leave it out."
        )
    check_side(spec.img_size, title="an ONNX file")


def _check_input(opened: OpenedOnnx, spec: ModelSpec) -> None:
    """Require one input of images, of the size that was asked for."""
    shape = opened.input_shape
    if opened.other_inputs:
        names = ", ".join(f"“{name}”" for name in opened.other_inputs[:_SHOWN])
        raise UnsupportedModel(
            f"The file's network needs more than images: {names} beside “{opened.input_name}”. Export it with images "
            "as its only input, or choose outputs that do not depend on the others."
        )
    if len(shape) != 4:
        raise UnsupportedModel(
            f"The input “{opened.input_name}” has the shape {tuple(shape)}; images are (N, C, H, W) or (N, H, W, C)."
            " Only networks of such images are measured."
        )
    _, height, width = metadata.image_shape(opened.input_shape)
    if spec.img_size not in (None, height) or spec.img_size not in (None, width):
        raise InvalidSpec(
            f"The file is fixed to images of {height} × {width} pixels, got img_size {spec.img_size}. Leave it empty, "
            "or export the file with free height and width."
        )


def _check_layers(opened: OpenedOnnx) -> None:
    """Require a layer outside of what onnxruntime computes."""
    left = opened.network.in_runtime
    if left and not any(True for _ in compressible_weights(opened.network)):
        others = f" and {plural(len(left) - 1, 'other node')}" if len(left) > 1 else ""
        raise UnsupportedModel(
            f"All layers of the file are among what onnxruntime computes, {left[0]}{others}, so there is none to "
            "compress. Bring the float file that it was made from."
        )


def _outputs_of(task: Task, opened: OpenedOnnx) -> tuple[str, ...]:
    """Return the first outputs that ``task`` can read: the usual ones, else one alone; UnsupportedModel lists all."""
    names = next((names for names in _tried(opened) if _is_read(task, opened, names)), None)
    if names is None:
        others = " or ".join(fitting_tasks(opened))
        advice = f"These outputs could be {others}: choose that task, or export" if others else "Export"
        raise UnsupportedModel(
            f"No output of the file is one of {task.label.lower()}: {listed_outputs(opened.candidates)}. {advice} the "
            "network with such an output."
        )
    if len(names) > 1 and _is_read(task, opened, names[:1]):  # perhaps it measures nothing but the first
        whole, alone = (task.output(_read_shapes(task, opened, some)) for some in (names, names[:1]))
        return names[:1] if whole.shape == alone.shape else names
    return names


def fitting_tasks(opened: OpenedOnnx) -> tuple[str, ...]:
    """Return the tasks that can read the usual outputs together, else one alone; those that fit anything come last."""
    found: list[Task] = []
    for names in _tried(opened):
        fitting = [task for task in TASKS.values() if _is_read(task, opened, names)]
        found = found or fitting
        if not all(task.fits_anything for task in fitting):
            found = fitting
            break
    return tuple(task.name for task in sorted(found, key=lambda task: task.fits_anything))


def listed_outputs(candidates: Sequence[OutputFacts]) -> str:
    """Return names and shapes of the first few outputs."""
    listed = [f"“{each.name}” {tuple(each.shape)}" for each in candidates[:_SHOWN]]
    return ", ".join(listed) + (" and others" if len(candidates) > _SHOWN else "")


def _tried(opened: OpenedOnnx) -> list[tuple[str, ...]]:
    """Return the usual outputs together, then each alone: logits before probabilities, those named like answers."""
    logits = {each.name for each in opened.candidates if each.kind == "logits"}
    named = {name for name in opened.outputs if any(word in name.lower() for word in _ANSWERS)}
    ranked = sorted(opened.outputs, key=lambda name: 0 if name in logits else 1 if name in named else 2)
    return [opened.outputs, *((name,) for name in ranked)]


def _is_read(task: Task, opened: OpenedOnnx, names: Sequence[str]) -> bool:
    try:
        task.check_output(_read_shapes(task, opened, names), opened.input_shape[0])
    except UnsupportedModel:
        return False
    return True


def _readers_of(task: Task, opened: OpenedOnnx, prepared: Preprocessing, key: str) -> tuple[OutputReader, ...]:
    """Return what may read the outputs of a network, by those for an image of noise; with ``key`` that of a setting."""
    if key:
        return (task.reader_of(key),)
    num_classes, size = len(metadata.names_in(opened.metadata)), metadata.image_shape(opened.input_shape)[1:]
    if not task.readers(_like_outputs(opened, opened.outputs), size, num_classes):
        return ()
    generator = torch.Generator().manual_seed(0)
    mean, std = (torch.tensor(each)[:, None, None] for each in (prepared.mean, prepared.std))
    noise = (torch.rand((1, *prepared.input_shape), generator=generator) - mean) / std
    with torch.no_grad():
        return tuple(task.readers(opened.network(noise), size, num_classes))


def _read_shapes(task: Task, opened: OpenedOnnx, names: Sequence[str], reader: OutputReader | None = None) -> object:
    """Return what ``task`` reads of outputs, without values; raises UnsupportedModel where that is nothing."""
    raw = _like_outputs(opened, names)
    reader = reader or next(iter(task.readers(raw, metadata.image_shape(opened.input_shape)[1:])), None)
    return raw if reader is None else reader(raw)


def _like_outputs(opened: OpenedOnnx, names: Sequence[str]) -> Tensor | tuple[Tensor, ...]:
    """Return tensors in the shapes of outputs as a network returns them, without values."""
    shapes = {each.name: each.shape for each in opened.candidates}
    outputs = tuple(torch.empty(shapes[name], device="meta") for name in names)
    return outputs[0] if len(outputs) == 1 else outputs


def _num_outputs(task: Task, opened: OpenedOnnx, reader: OutputReader | None) -> int:
    """Return the width of what the task measures, for images of the file's own batch."""
    try:
        raw = _read_shapes(task, opened, opened.outputs, reader)
    except (RuntimeError, IndexError, ValueError) as error:  # a layout that a person gave
        raise UnsupportedModel(
            f"The layout that was chosen does not fit the outputs {listed_outputs(opened.candidates)}. Leave it out, "
            "or take one that the reading of the file lists."
        ) from error
    task.check_output(raw, opened.input_shape[0])
    return task.num_outputs(task.output(raw))


def _notes(opened: OpenedOnnx, spec: ModelSpec) -> Iterator[str]:
    yield from opened.notes
    if Path(spec.checkpoint).suffix.lower() != ".onnx":
        yield "Files that are delivered from it are one ONNX file with all weights inside."
    yield from abilities_of(opened.network).missing
    if metadata.is_channels_last(opened.input_shape):
        yield "The file takes images with channels last; they are brought to that order before it."
    others = [each.name for each in opened.candidates if each.kind != "logits" and each.name not in opened.outputs]
    measured_before = {each.of for each in opened.candidates if each.name in opened.outputs}
    left = [name for name in others if name not in measured_before]
    if left and not spec.outputs:
        yield (  # to everybody, so without names
            f"Of several outputs of the file, {len(left)} {'is' if len(left) == 1 else 'are'} not measured. Choose "
            f"another one to measure that (--onnx-output {left[0]})."
        )
        yield (
            f"Of several outputs {', '.join(f'“{name}”' for name in opened.outputs)} is measured, not "
            f"{', '.join(f'“{name}”' for name in left[:_SHOWN])}."
        )
