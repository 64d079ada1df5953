"""The two sides of a check, open: files as they are, weights in PyTorch; and outputs that are no class scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint, InvalidInput, InvalidSpec
from senseapp.core.steps import Progress
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet
from senseapp.descriptions.runtimes import runtime_of_file, usual_runtime
from senseapp.measure.context import MeasurementContext
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.onnx.metadata import preparation_in
from senseapp.networks.onnx.upload import with_weights_beside
from senseapp.networks.sources.load import load_model
from senseapp.records.check import CheckedFile, CheckSpec, file_name
from senseapp.records.spec import ModelSpec
from senseapp.runtimes.base import Runtime, runtime_named
from senseapp.runtimes.open_file import FileFacts, OpenFile
from senseapp.tasks import Task
from senseapp.tasks.classification import Classification
from senseapp.tasks.reading import OutputReader

_SMALLEST = 1e-7  # probability whose logarithm is still taken
_SLACK = 0.01  # of rounded probabilities beyond 0 and 1
_PIXELS = 255.0  # of 8 bits, the value of white


class NotComparable(Exception):
    """Both files are open, and cannot answer the same images in the same form.

    Its text is one sentence: the name of the side and what is said of it.
    """

    def __init__(self, side: OpenSide, said: str) -> None:
        super().__init__(f"{side.name} {said}")
        self.side = side


def as_shares(batch: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Return normalised images (N, C, H, W) as brightness from 0 to 1."""
    mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (preprocessing.mean, preprocessing.std))
    return batch * std + mean


@dataclass(frozen=True, slots=True)
class OutputKind:
    """Transform of a network's outputs to class scores."""

    note: str
    scores: Callable[[Tensor], Tensor]


PROBABILITIES = OutputKind(
    "It returns probabilities; their logarithms are compared as class scores.",
    lambda values: values.double().clamp_min(_SMALLEST).log(),
)
SIGMOIDS = OutputKind(
    "It returns a probability for each output; their logits are compared.",
    lambda values: values.double().clamp(_SMALLEST, 1 - _SMALLEST).logit(),
)


def kind_of_outputs(task: Task, raw: object, like: OutputKind | None = None) -> OutputKind | None:
    """Return what raw outputs of some images are read as; None for scores as they are.

    ``like`` is what those of the reference are: rounded probabilities need not sum to 1.
    """
    if not isinstance(raw, Tensor) or (not isinstance(task, Classification) and not task.several_labels):
        return None
    values = raw.double().reshape(len(raw), -1)
    if not bool(values.isfinite().all()) or bool(((values < -_SLACK) | (values > 1 + _SLACK)).any()):
        return None
    if task.several_labels or values.shape[1] == 1:
        return SIGMOIDS
    # of probabilities that were rounded on the way, away from 1
    sums = bool(((values.sum(dim=1) - 1).abs() <= 0.02).all())
    return PROBABILITIES if sums or like is PROBABILITIES else None


@dataclass(slots=True, kw_only=True)
class OpenSide:
    """One file of a check, open: a :class:`~senseapp.networks.network.Network` for images as the reference takes them.

    Either ``file`` is open in a runtime, which gets pixels from 0 to 255 if it takes whole numbers, or ``context`` has
    the network in PyTorch. ``content`` is of the file, or of the one that was made of the weights. ``file_bytes`` are
    those on disk, of the weights in memory where there is no file. ``reader`` makes of each output what the task reads;
    ``kind`` is what outputs are in place of class scores. ``title`` is what people call it.
    """

    spec: ModelSpec
    preprocessing: Preprocessing
    file: OpenFile | None = None
    context: MeasurementContext | None = None
    content: bytes | None = None
    file_bytes: int
    reader: OutputReader | None = None
    kind: OutputKind | None = None
    notes: tuple[str, ...] = ()
    title: str = ""

    @property
    def name(self) -> str:
        """What people call it, or the name of the file or the network."""
        return self.title or file_name(self.spec)

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call computes; fewer are filled up."""
        return None if self.file is None else self.file.fixed_batch

    @property
    def is_onnx(self) -> bool:
        """Whether it is a file of ONNX, whose insides can be looked at."""
        return self.file is not None and is_onnx(self.spec)

    def given(self, batch: Tensor) -> Tensor:
        """Return images as values that the file takes, still float32 (N, C, H, W)."""
        if self.file is None or not self.file.facts.takes_pixels:
            return batch
        return (as_shares(batch, self.preprocessing) * _PIXELS).round().clamp(0, _PIXELS)

    def raw(self, batch: Tensor) -> object:
        """Return the outputs for ``batch`` as the file or the network has them."""
        if self.file is not None:
            return self.file.run(self.given(batch.detach().cpu()))
        assert self.context is not None
        return self.context.run(batch)

    def run(self, batch: Tensor) -> object:
        """Return the outputs for ``batch`` as its task reads them, brought to class scores."""
        found = self.raw(batch) if self.reader is None else self.reader(self.raw(batch))
        if self.kind is None:
            return found
        assert isinstance(found, Tensor)
        return self.kind.scores(found).float()

    def on_other_processors(self) -> OpenSide | None:
        """Return the file as :meth:`.Runtime.on_other_processors` does, read as the file is; None for weights."""
        file = None if self.file is None else _runtime_of(self.spec).on_other_processors(self.content or b"")
        if self.file is None or file is None:
            return None
        file.choose(self.file.output_names)
        return replace(self, file=file)

    @property
    def record(self) -> CheckedFile:
        """Facts of the file, without times."""
        facts = None if self.file is None else self.file.facts
        return CheckedFile(
            name=self.name,
            kind="PyTorch weights" if self.file is None else f"{self.file.title} file",
            file_bytes=self.file_bytes,
            takes="" if facts is None else facts.takes,
            returns="" if facts is None else facts.returns,
            notes=self.notes,
        )


def is_runtime_file(spec: ModelSpec) -> bool:
    """Return whether a model is a file that a runtime runs as it is, by its suffix."""
    return runtime_of_file(spec.checkpoint) is not None


def is_onnx(spec: ModelSpec) -> bool:
    """Return whether a model is a file of ONNX, by its suffix."""
    found = runtime_of_file(spec.checkpoint)
    return found is not None and found.name == usual_runtime()


def opened(content: bytes, spec: ModelSpec, *, threads: int | None = None) -> OpenFile:
    """Return a file of any program, open in the runtime of its suffix."""
    return _runtime_of(spec).as_it_is(content, threads=threads)


def _runtime_of(spec: ModelSpec) -> Runtime:
    description = runtime_of_file(spec.checkpoint)
    assert description is not None
    return runtime_named(description.name)


def open_file(spec: ModelSpec, *, own_disk: bool) -> tuple[OpenFile, bytes]:
    """Open the file of a runtime that ``spec`` names; on the person's ``own_disk`` weights beside it are read too.

    Raises InvalidInput if there is none, or it cannot be opened; the message names it.
    """
    path = Path(spec.checkpoint)
    try:
        if not path.is_file() or not path.stat().st_size:
            raise InvalidCheckpoint("there is nothing in it" if path.is_file() else "it is not there")
        content = with_weights_beside(path) if own_disk else path.read_bytes()
        return opened(content, spec), content
    except OSError as error:
        raise InvalidCheckpoint(f"{path.name} cannot be read: {error.strerror}.") from error
    except InvalidInput as error:
        raise type(error)(f"{path.name} cannot be checked: {str(error).rstrip('.')}.") from error


def open_weights(
    spec: ModelSpec, loaded: LoadedModel, images: ImageSet, preprocessing: Preprocessing, task: Task
) -> OpenSide:
    """Return a network in PyTorch as a side."""
    context = MeasurementContext.prepare(loaded.module, images, own=True, task=task)
    stored = Path(spec.checkpoint) if spec.checkpoint else None
    size = context.profile.num_bytes if stored is None else stored.stat().st_size
    return OpenSide(spec=spec, preprocessing=preprocessing, context=context, file_bytes=size, notes=loaded.notes)


def open_candidate(
    check: CheckSpec, reference: OpenSide, images: ImageSet, task: Task, *, own_disk: bool, progress: Progress
) -> OpenSide:
    """Open the candidate; a checkpoint belongs to the architecture of the reference where it names none.

    Raises NotComparable if it takes other images than the reference, InvalidInput if it cannot be opened.
    """
    spec, preprocessing = check.candidate, reference.preprocessing
    if not is_runtime_file(spec):
        named = spec
        if spec.library == "auto":
            if is_runtime_file(reference.spec):
                raise InvalidSpec(
                    f"{file_name(spec)} holds weights, and the original is an ONNX file, which names no architecture. "
                    "Choose an original of the same architecture, or export the compressed file as ONNX."
                )
            named = replace(reference.spec, pretrained=False, checkpoint=spec.checkpoint, network=spec.network)
        try:
            loaded = load_model(named, progress=progress)
        except InvalidInput as error:
            raise type(error)(f"The compressed file cannot be loaded: {error}") from error
        return replace(open_weights(spec, loaded, images, preprocessing, task), title=check.candidate_title)
    file, content = open_file(spec, own_disk=own_disk)
    size = len(content)
    title = check.candidate_title
    side = OpenSide(spec=spec, preprocessing=preprocessing, file=file, content=content, file_bytes=size, title=title)
    problem = _input_problem(file.facts, tuple(images.batch(0, 1).shape[1:]))
    if problem:
        raise NotComparable(side, problem)
    side.notes = tuple(_notes_on_input(file.facts, preprocessing))
    return side


def _input_problem(facts: FileFacts, image: Sequence[int]) -> str:
    """Return why a file cannot take images (C, H, W) of the reference, to follow its name; empty where it can."""
    own = facts.image_shape
    if facts.input_type == "int8":
        return f"takes int8 numbers ({facts.takes}), whose scale the file does not tell. Check it with a float input."
    if all(length in (None, wanted) for length, wanted in zip(own, image, strict=True)):
        return ""
    if own[0] not in (None, image[0]):
        return f"takes images of {plural(own[0] or 0, 'channel')} ({facts.takes}), the original of {image[0]}."
    sides = [" × ".join(str(length or "any") for length in shape[:0:-1]) for shape in (own, image)]
    return f"takes images of {sides[0]} pixels ({facts.takes}), the original of {sides[1]}."


def _notes_on_input(facts: FileFacts, preprocessing: Preprocessing) -> Iterator[str]:
    if facts.channels_last:
        yield "It takes images with channels last (N, H, W, C); they are brought to that order before it."
    if facts.takes_pixels:
        yield f"It takes {facts.input_type} numbers, so it gets pixels from 0 to 255."
    elif facts.input_type != "float32":
        yield f"It takes {facts.input_type} numbers; images are rounded to that."
    if facts.input_shape[0] is not None:
        yield f"It is fixed to {plural(facts.input_shape[0], 'image')} at a time; the last call is filled up."
    channels, height, width = preprocessing.input_shape
    told = preparation_in(facts.metadata, (channels, height, width))
    parts = ("mean", "std", "channel_order")
    if told is not None and any(getattr(told, part) != getattr(preprocessing, part) for part in parts):
        yield "It says itself that its images are prepared otherwise than those of the original."
