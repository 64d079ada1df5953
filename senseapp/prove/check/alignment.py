"""The reference of a check with its images, and a candidate whose outputs are read as the reference's are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from senseapp.core.errors import InvalidInput, InvalidSpec, UnsupportedModel
from senseapp.core.steps import Progress
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, draw, effective_preprocessing
from senseapp.data.load import images_for
from senseapp.measure.preparation_search import choose_preparation
from senseapp.measure.readings import reading_of
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.network import in_calls
from senseapp.networks.sources.load import load_model
from senseapp.prove.check.sides import (
    NotComparable,
    OpenSide,
    is_onnx,
    is_runtime_file,
    kind_of_outputs,
    open_file,
    open_weights,
)
from senseapp.prove.evaluator import curves_and_others
from senseapp.records.check import CheckSpec
from senseapp.records.inputs import LEAST_HELD_OUT
from senseapp.records.spec import RunSpec
from senseapp.runtimes.open_file import shape_text
from senseapp.tasks import Task, task_named
from senseapp.tasks.reading import OutputReader, Reading

_LIKELY = ("logit", "prob", "score", "class", "cls", "pred", "softmax", "output")  # in names of outputs


@dataclass(slots=True, kw_only=True)
class PreparedReference:
    """The reference, open, and the images as it takes them."""

    reference: OpenSide
    images: ImageSet
    task: Task
    class_names: tuple[str, ...]
    num_outputs: int
    reading: Reading
    notes: tuple[str, ...]
    own_images: int


def prepare_reference(
    spec: CheckSpec, *, own_disk: bool, data_roots: tuple[Path, ...], progress: Progress
) -> PreparedReference:
    """Open the reference of ``spec`` and load the images, whose preparation they choose where it is not set.

    Raises InvalidInput if the file cannot be opened, gives no answers of the task, or there are no images; ReadingOpen
    if nothing decides the preparation, so that a person has to choose.
    """
    progress("Opening the original")
    model, data = spec.reference, spec.data
    file, content = open_file(model, own_disk=own_disk) if is_runtime_file(model) else (None, b"")
    if file is not None and not is_onnx(model):
        raise InvalidSpec(
            f"The original is a {file.title} file. Give the network that it was made of, as ONNX or as weights: a "
            f"{file.title} file is checked as the compressed one."
        )
    loaded = load_model(model if file is None else replace(model, outputs=()), progress=progress)
    if data.preparation == "auto":
        asked = RunSpec(model=replace(model, outputs=()), data=data)
        chosen = choose_preparation(asked, model=loaded, data_roots=data_roots, progress=progress).settled
        data = chosen.data
        if chosen.model != asked.model:  # the images choose the layout of the outputs and what labels mean, too
            model = replace(chosen.model, outputs=model.outputs)
            loaded = load_model(chosen.model, progress=progress)
    if loaded.task and loaded.task != model.task:
        model = replace(model, task=loaded.task)
    task, preprocessing = task_named(model.task), effective_preprocessing(data, loaded.preprocessing)
    side = None
    if file is not None:
        notes = loaded.onnx.notes if loaded.onnx is not None and (data.mean or data.std) else loaded.notes
        side = OpenSide(
            spec=model, preprocessing=preprocessing, file=file, content=content, file_bytes=len(content), notes=notes
        )
        loaded = _with_outputs_of(side, task, loaded)
    progress("Loading the images")
    own_images = spec.own_images

    def load(count: int | None, seed: int) -> ImageSet:
        return images_for(
            loaded, data, task=task, num_samples=count, seed=seed, data_roots=data_roots, progress=progress
        )

    images = load(spec.num_samples, spec.seed)
    if own_images:
        _, others = curves_and_others(load, spec.own_wanted, spec.own_seed, measured=own_images)
        if len(others) >= LEAST_HELD_OUT:
            images, own_images = draw(others, spec.num_samples, spec.seed), 0
    if side is None:
        side = open_weights(model, loaded, images, preprocessing, task)
    return PreparedReference(
        reference=side,
        images=images,
        task=task,
        class_names=tuple(loaded.class_names),
        num_outputs=loaded.num_classes,
        reading=reading_of(RunSpec(model=model, data=data), loaded),
        notes=data.chosen_by,
        own_images=own_images,
    )


def _with_outputs_of(side: OpenSide, task: Task, loaded: LoadedModel) -> LoadedModel:
    """Choose the outputs of the reference to compare and what reads them; return its facts with their number."""
    file, model, shape = side.file, side.spec, loaded.preprocessing.input_shape
    assert file is not None
    noise = torch.rand(file.fixed_batch or 1, *shape, generator=torch.Generator().manual_seed(0))
    wanted = model.outputs or (loaded.onnx.outputs if loaded.onnx is not None else file.output_names)
    if (model.outputs and not model.layout) or {name for name, _ in file.facts.outputs}.issuperset(wanted):
        file.choose(wanted)
        side.reader = next(iter(loaded.readers), None)
    else:  # it was read before a selection of boxes, or before a softmax
        _read_as(task, side, noise, num_classes=loaded.num_classes)
    raw = side.run(noise)
    task.check_output(raw, len(noise))
    width = task.num_outputs(task.output(raw))
    names = loaded.class_names if len(loaded.class_names) == width else ()
    return replace(loaded, num_classes=width, class_names=names)


def _read_as(task: Task, side: OpenSide, images: Tensor, *, num_classes: int, like: OpenSide | None = None) -> None:
    """Choose the outputs of a side that ``task`` can read, those shaped ``like`` the reference first; else raise."""
    file = side.file
    assert file is not None
    names = tuple(name for name, _ in file.facts.outputs)
    wanted = None if like is None else _shapes(like.raw(images))
    alike = () if like is None or like.file is None else tuple(name for name in like.file.output_names if name in names)
    by_name = sorted(names, key=lambda name: not any(word in name.lower() for word in _LIKELY))
    found: tuple[tuple[str, ...], OutputReader | None] | None = None
    for chosen in dict.fromkeys((alike or file.output_names, file.output_names, names, *((name,) for name in by_name))):
        file.choose(chosen)
        raw = side.raw(images)
        if like is not None and _shapes(raw) == wanted:
            side.reader = like.reader
            return
        try:
            readers = task.readers(raw, (images.shape[2], images.shape[3]), num_classes)
            task.check_output(readers[0](raw) if readers else raw, len(images))
        except UnsupportedModel:
            continue
        found = found or (chosen, next(iter(readers), None))
        if like is None:
            break
    if found is None:
        file.choose(names)
        listed = ", ".join(f"“{name}” {shape_text(shape)}" for name, shape in file.facts.outputs[:8])
        raise UnsupportedModel(
            f"No output of the file is one of {task.label.lower()}: {listed}. Choose another task or file."
        )
    file.choose(found[0])
    side.reader = found[1]


def _shapes(raw: object) -> list[tuple[int, ...]]:
    return [tuple(getattr(each, "shape", ())) for each in (raw if isinstance(raw, list | tuple) else [raw])]


def align_outputs(prepared: PreparedReference, candidate: OpenSide) -> None:
    """Choose outputs of the candidate that are compared, and read both sides as class scores.

    Raises NotComparable if it fails on the images, or its outputs have another form.
    """
    reference, task, file = prepared.reference, prepared.task, candidate.file
    first = prepared.images.batch(0, min(16, len(prepared.images)))  # that outputs are looked at before all are run
    before, count = _raw(reference, first)
    task.check_output(before, count)
    try:
        if file is not None:
            asked, wanted = candidate.spec.outputs, reference.file.output_names if reference.file is not None else ()
            if asked or (wanted and {name for name, _ in file.facts.outputs}.issuperset(wanted)):
                file.choose(asked or wanted)
            like = None if reference.file is None else reference
            some = first[: file.fixed_batch or len(first)]
            _read_as(task, candidate, some, num_classes=prepared.num_outputs, like=like)
        after, count = _raw(candidate, first)
        task.check_output(after, count)
    except InvalidInput as error:
        raise NotComparable(candidate, f"cannot be compared: {error}") from error
    outputs = [task.output(each) for each in (before, after)]
    if not task.one_tensor:
        for counts, noun in (
            ([task.num_outputs(each) for each in outputs], task.label_words),
            ([each.shape[1] for each in outputs], ("box", "boxes")),
        ):
            if counts[0] != counts[1]:
                told = f"{plural(counts[1], *noun)} in each image, the original {counts[0]}"
                raise NotComparable(candidate, f"tells apart {told}.")
    shapes = [tuple(each.shape) for each in outputs]
    if shapes[0][1:] != shapes[1][1:]:
        raise NotComparable(candidate, _shape_problem(*shapes))
    like_reference = kind_of_outputs(task, before)
    kinds = like_reference, kind_of_outputs(task, after, like_reference)
    for side, kind in zip((reference, candidate), kinds, strict=True):
        side.kind = kind
        side.notes = side.notes if kind is None else (*side.notes, kind.note)


def _raw(side: OpenSide, images: Tensor) -> tuple[object, int]:
    """Return the raw output for images, and for how many: those of one call, where outputs are no single tensor."""
    calls = in_calls(side, images)
    found = [side.run(each) for each in calls]
    tensors = [each for each in found if isinstance(each, Tensor)]
    return (torch.cat(tensors), len(images)) if tensors else (found[0], len(calls[0]))


def _shape_problem(reference: Sequence[int], candidate: Sequence[int]) -> str:
    """Return why outputs of these shapes, images first, are not compared, to follow the name of the candidate."""
    if len(reference) == len(candidate) == 2:
        numbers = plural(candidate[1], "number"), reference[1]
        more = candidate[1] - reference[1]
        hint = {1: "perhaps a class for the background is added", -1: "perhaps a class for the background is left out"}
        said = f": {hint[more]}" if more in hint else ""
        return f"gives {numbers[0]} for each image, the original {numbers[1]}{said}."
    return f"gives outputs of shape {tuple(candidate)}, the original of {tuple(reference)}."
