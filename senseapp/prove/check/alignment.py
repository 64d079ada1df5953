"""The reference of a check with its images, and a candidate whose outputs are read as the reference's are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from senseapp.core.errors import InvalidInput
from senseapp.core.steps import Progress
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, effective_preprocessing
from senseapp.data.load import images_for
from senseapp.measure.preparation_search import choose_preparation
from senseapp.measure.readings import reading_of
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.network import Network
from senseapp.networks.sources.load import load_model
from senseapp.prove.check.outputs import OpenSide, kind_of_outputs, read_as
from senseapp.prove.check.sides import NotComparable, SideOpener, is_runtime_file, shape_problem
from senseapp.records.check import CheckSpec
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.runtimes.foreign import ForeignFile
from senseapp.tasks import Task, task_named
from senseapp.tasks.reading import Reading


@dataclass(slots=True, kw_only=True)
class PreparedReference:
    """The reference, open, and the images as it takes them."""

    reference: OpenSide
    images: ImageSet
    preprocessing: Preprocessing
    task: Task
    class_names: tuple[str, ...]
    num_outputs: int
    reading: Reading
    notes: tuple[str, ...]

    def first_images(self) -> Tensor:
        """Return the images that outputs are looked at before all are run."""
        return self.images.batch(0, min(16, len(self.images)))  # images that outputs are looked at before all are run


def prepare_reference(
    spec: CheckSpec, opener: SideOpener, data_roots: tuple[Path, ...], progress: Progress
) -> PreparedReference:
    """Open the reference of ``spec`` and load the images, whose preparation they choose where it is not set.

    Raises:
        InvalidInput: the file cannot be opened, gives no answers of the task, or there are no images.
    """
    progress("Opening the original")
    model, data = spec.reference, spec.data
    file, content = opener.file(model) if is_runtime_file(model) else (None, None)
    loaded = load_model(model if file is None else replace(model, outputs=()), progress=progress)
    if data.preparation == "auto":
        model, data, loaded = _chosen_preparation(model, data, loaded, data_roots, progress)
    if loaded.task and loaded.task != model.task:
        model = replace(model, task=loaded.task)
    task, preprocessing = task_named(model.task), effective_preprocessing(data, loaded.preprocessing)
    side = None
    if file is not None:
        size = len(content or b"")
        notes = loaded.onnx.notes if loaded.onnx is not None and (data.mean or data.std) else loaded.notes
        side = OpenSide(
            spec=model, preprocessing=preprocessing, file=file, content=content, file_bytes=size, notes=notes
        )
        loaded = _with_outputs_of(side, file, task, loaded)
    progress("Loading the images")
    images = images_for(
        loaded,
        data,
        task=task,
        num_samples=spec.num_samples,
        seed=spec.seed,
        data_roots=data_roots,
        progress=progress,
    )
    if side is None:
        side = opener.weights(model, loaded, images, preprocessing, task)
    return PreparedReference(
        reference=side,
        images=images,
        preprocessing=preprocessing,
        task=task,
        class_names=tuple(loaded.class_names),
        num_outputs=loaded.num_classes,
        reading=reading_of(RunSpec(model=model, data=data), loaded),
        notes=data.chosen_by,
    )


def _chosen_preparation(
    model: ModelSpec, data: DataSpec, loaded: LoadedModel, data_roots: tuple[Path, ...], progress: Progress
) -> tuple[ModelSpec, DataSpec, LoadedModel]:
    """Have the images choose their preprocessing, the layout of the outputs, and what labels mean.

    Raises:
        ReadingOpen: nothing decides, so that a person has to choose.
    """
    asked = RunSpec(model=replace(model, outputs=()), data=data)
    chosen = choose_preparation(asked, model=loaded, data_roots=data_roots, progress=progress).settled
    if chosen.model == asked.model:
        return model, chosen.data, loaded
    return replace(chosen.model, outputs=model.outputs), chosen.data, load_model(chosen.model, progress=progress)


def _with_outputs_of(side: OpenSide, file: ForeignFile, task: Task, loaded: LoadedModel) -> LoadedModel:
    """Choose the outputs of the reference to compare and what reads them; return its facts with their number."""
    shape = loaded.preprocessing.input_shape
    noise = torch.rand(file.fixed_batch or 1, *shape, generator=torch.Generator().manual_seed(0))
    own, model = loaded.onnx.outputs if loaded.onnx is not None else file.output_names, side.spec
    known = {name for name, _ in file.facts.outputs}
    wanted = model.outputs or own
    if known.issuperset(wanted) or (model.outputs and not model.layout):
        file.choose(wanted)
        side.reader = next(iter(loaded.readers), None)
    else:  # it was read before a selection of boxes, or before a softmax
        read_as(task, side, file, noise, num_classes=loaded.num_classes)
    raw = side.run(noise)
    task.check_output(raw, len(noise))
    width = task.num_outputs(task.output(raw))
    names = loaded.class_names if len(loaded.class_names) == width else ()
    return replace(loaded, num_classes=width, class_names=names)


def align_outputs(prepared: PreparedReference, candidate: OpenSide) -> None:
    """Choose outputs of the candidate that are compared, and read both sides as class scores.

    Raises:
        NotComparable: it fails on the images, or its outputs have another form.
    """
    reference, task, first = prepared.reference, prepared.task, prepared.first_images()
    before, count = _raw(reference, first)
    task.check_output(before, count)
    try:
        if candidate.file is not None:
            _choose_outputs(candidate, candidate.file, reference, task, first, prepared.num_outputs)
        after, count = _raw(candidate, first)
        task.check_output(after, count)
    except InvalidInput as error:
        raise NotComparable(f"{candidate.name} cannot be compared: {error}", candidate) from error
    outputs = [task.output(each) for each in (before, after)]
    if not task.one_tensor:
        for counts, noun in (
            ([task.num_outputs(each) for each in outputs], task.label_words),
            ([each.shape[1] for each in outputs], ("box", "boxes")),
        ):
            if counts[0] != counts[1]:
                told = f"{plural(counts[1], *noun)} in each image, the original {counts[0]}"
                raise NotComparable(f"{candidate.name} tells apart {told}.", candidate)
    shapes = [tuple(each.shape) for each in outputs]
    if shapes[0][1:] != shapes[1][1:]:
        raise NotComparable(f"{candidate.name} {shape_problem(*shapes)}", candidate)
    like = kind_of_outputs(task, before)
    for side, kind in ((reference, like), (candidate, kind_of_outputs(task, after, like))):
        side.kind = kind
        if kind is not None:
            side.notes = (*side.notes, kind.note)


def _choose_outputs(
    candidate: OpenSide, file: ForeignFile, reference: OpenSide, task: Task, first: Tensor, num_classes: int
) -> None:
    known, asked = {name for name, _ in file.facts.outputs}, candidate.spec.outputs
    wanted = reference.file.output_names if reference.file is not None else ()
    if asked or (wanted and known.issuperset(wanted)):
        file.choose(asked or wanted)
    some, like = first[: file.fixed_batch or len(first)], None if reference.file is None else reference
    read_as(task, candidate, file, some, num_classes=num_classes, like=like)


def _raw(network: Network, images: Tensor) -> tuple[object, int]:
    """Return the raw output for images, and for how many: those of one call, where outputs are no single tensor."""
    first, *others = torch.split(images, network.fixed_batch or len(images))
    raw = network.run(first)
    if not isinstance(raw, Tensor):
        return raw, len(first)
    parts = [raw, *(part for each in others if isinstance(part := network.run(each), Tensor))]
    return torch.cat(parts), len(images)
