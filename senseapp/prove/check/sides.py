"""The two sides of a check, open: files as they are, weights in PyTorch, and what their outputs are read as."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidCheckpoint, InvalidInput, InvalidSpec, UnsupportedModel
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.measure.context import MeasurementContext
from senseapp.networks.loaded import IMAGENET_MEAN, IMAGENET_STD, LoadedModel, Preprocessing
from senseapp.networks.network import Abilities, Network, in_calls
from senseapp.networks.onnx.metadata import class_names_in, preparation_in
from senseapp.networks.onnx.preparation import usual_crop
from senseapp.networks.sources.building import channel_statistics
from senseapp.networks.sources.load import load_model
from senseapp.records.check import CheckedFile, file_name
from senseapp.records.inputs import USUAL_SIZES
from senseapp.records.spec import ModelSpec
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.foreign import FileFacts, ForeignFile, shape_text
from senseapp.tasks import Task
from senseapp.tasks.classification import Classification

_SMALLEST = 1e-7  # probability whose logarithm is still taken
_SUM = 0.02  # of probabilities that were rounded on the way, away from 1
_SLACK = 0.01  # of rounded probabilities beyond 0 and 1
_PIXELS = 255.0  # of 8 bits, the value of white
_LIKELY = ("logit", "prob", "score", "class", "cls", "pred", "softmax", "output")


class ComparedFile:
    """A file of a runtime as a :class:`~senseapp.networks.network.Network` for images prepared as the reference's are.

    Files that take whole numbers get pixels from 0 to 255 instead.
    """

    def __init__(self, file: ForeignFile, preprocessing: Preprocessing) -> None:
        self.file, self._preprocessing = file, preprocessing

    @property
    def abilities(self) -> Abilities:
        """A file only runs."""
        return self.file.abilities

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call computes; fewer are filled up."""
        return self.file.fixed_batch

    def given(self, batch: Tensor) -> Tensor:
        """Return images as values that the file takes, still float32 (N, C, H, W)."""
        if not self.file.facts.takes_pixels:
            return batch
        return (as_shares(batch, self._preprocessing) * _PIXELS).round().clamp(0, _PIXELS)

    def run(self, batch: Tensor) -> object:
        """Return the outputs for ``batch``."""
        return self.file.run(self.given(batch.detach().cpu()))


def as_shares(batch: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Return normalised images (N, C, H, W) as brightness from 0 to 1."""
    mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (preprocessing.mean, preprocessing.std))
    return batch * std + mean


@dataclass(frozen=True, slots=True)
class OutputKind:
    """Transform of a network's outputs to class scores."""

    note: str
    scores: Callable[[Tensor], Tensor]


def _log(values: Tensor) -> Tensor:
    return values.double().clamp_min(_SMALLEST).log()


def _logit(values: Tensor) -> Tensor:
    return values.double().clamp(_SMALLEST, 1 - _SMALLEST).logit()


PROBABILITIES = OutputKind("It returns probabilities; their logarithms are compared as class scores.", _log)
SIGMOIDS = OutputKind("It returns a probability for each output; their logits are compared.", _logit)


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
    sums = bool(((values.sum(dim=1) - 1).abs() <= _SUM).all())
    return PROBABILITIES if sums or like is PROBABILITIES else None


class Interpreted:
    """A network whose outputs are brought to class scores."""

    def __init__(self, network: Network, kind: OutputKind) -> None:
        self._network, self._kind = network, kind

    @property
    def abilities(self) -> Abilities:
        """Those of the network."""
        return self._network.abilities

    @property
    def fixed_batch(self) -> int | None:
        """That of the network."""
        return self._network.fixed_batch

    def run(self, batch: Tensor) -> object:
        """Return the scores for ``batch``."""
        found = self._network.run(batch)
        assert isinstance(found, Tensor)
        return self._kind.scores(found).float()


@dataclass(slots=True, kw_only=True)
class OpenSide:
    """One file of a check, open.

    Attributes:
        spec: which it is.
        network: returns outputs of its task for images as the reference takes them.
        file: the open file of a runtime, as it is compared; None for weights in PyTorch.
        content: of that file, or of the one that was made of the weights; None without one.
        module: the network in PyTorch; None for files of a runtime.
        file_bytes: size on disk, of the weights in memory where there is no file.
        kind: what its outputs are in place of class scores; None for scores.
        notes: sentences on how it was read.
    """

    spec: ModelSpec
    network: Network
    file: ComparedFile | None = None
    content: bytes | None = None
    module: nn.Module | None = None
    file_bytes: int
    kind: OutputKind | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the file or the network."""
        return file_name(self.spec)

    @property
    def facts(self) -> FileFacts | None:
        """The declarations of the file; None for weights."""
        return None if self.file is None else self.file.file.facts

    @property
    def record(self) -> CheckedFile:
        """Facts of the file, without times."""
        facts = self.facts
        return CheckedFile(
            name=self.name,
            kind="PyTorch weights" if facts is None else "ONNX file",
            file_bytes=self.file_bytes,
            takes="" if facts is None else facts.takes,
            returns="" if facts is None else facts.returns,
            notes=self.notes,
        )


class NotComparable(Exception):
    """Both files are open, and cannot answer the same images in the same form; its text is one sentence."""

    def __init__(self, sentence: str, side: OpenSide) -> None:
        super().__init__(sentence)
        self.side = side


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOpener:
    """Opens both sides of a check.

    Attributes:
        runtime: that opens files.
        own_disk: whether files are the person's own, so that weights beside them are read.
        progress: told before each long step.
    """

    runtime: Runtime
    own_disk: bool
    progress: Callable[[str], None]

    def file(self, spec: ModelSpec) -> tuple[ForeignFile, bytes]:
        """Open the file of a runtime that ``spec`` names.

        Raises:
            InvalidInput: there is none, or it cannot be opened; the message names it.
        """
        path = Path(spec.checkpoint)
        try:
            if not path.is_file() or not path.stat().st_size:
                raise InvalidCheckpoint("there is nothing in it" if path.is_file() else "it is not there")
            content = self.runtime.whole(path) if self.own_disk else path.read_bytes()
            return self.runtime.foreign(content), content
        except OSError as error:
            raise InvalidCheckpoint(f"{path.name} cannot be read: {error.strerror}.") from error
        except InvalidInput as error:
            raise type(error)(f"{path.name} cannot be checked: {str(error).rstrip('.')}.") from error

    def described(self, spec: ModelSpec, file: ForeignFile | None) -> LoadedModel:
        """Return the reference as a network in PyTorch; if only a runtime opens it, the facts of its images."""
        if file is None:
            return load_model(spec, progress=self.progress)
        with suppress(UnsupportedModel, InvalidCheckpoint, InvalidSpec):  # onnxruntime has it open all the same
            return load_model(replace(spec, outputs=()), progress=self.progress)
        return _from_facts(spec, file.facts)

    def weights(self, spec: ModelSpec, loaded: LoadedModel, images: ImageSet, task: Task) -> OpenSide:
        """Return a network in PyTorch as a side."""
        context = MeasurementContext.prepare(loaded.module, images, own=True, task=task)
        stored = Path(spec.checkpoint) if spec.checkpoint else None
        size = context.profile.num_bytes if stored is None else stored.stat().st_size
        return OpenSide(spec=spec, network=context, module=context.model, file_bytes=size, notes=loaded.notes)

    def candidate(
        self,
        spec: ModelSpec,
        reference: ModelSpec,
        images: ImageSet,
        preprocessing: Preprocessing,
        task: Task,
    ) -> OpenSide:
        """Open the candidate; a checkpoint belongs to the architecture of the reference where it names none.

        Raises:
            NotComparable: it takes other images than the reference.
            InvalidInput: it cannot be opened.
        """
        if not is_runtime_file(spec):
            return self.weights(spec, self._candidate_weights(spec, reference), images, task)
        file, content = self.file(spec)
        compared = ComparedFile(file, preprocessing)
        side = OpenSide(spec=spec, network=compared, file=compared, content=content, file_bytes=len(content))
        problem = _input_problem(file.facts, tuple(images.batch(0, 1).shape[1:]))
        if problem:
            raise NotComparable(f"{side.name} {problem}", side)
        side.notes = tuple(_notes_on_input(file.facts, preprocessing))
        return side

    def _candidate_weights(self, spec: ModelSpec, reference: ModelSpec) -> LoadedModel:
        if spec.library == "auto":
            if is_runtime_file(reference):
                raise InvalidSpec(
                    f"{file_name(spec)} holds weights, and the reference is an ONNX file, which names no architecture. "
                    "Choose a reference of the same architecture, or export the candidate as ONNX."
                )
            spec = replace(reference, pretrained=False, checkpoint=spec.checkpoint, network=spec.network)
        try:
            return load_model(spec, progress=self.progress)
        except InvalidInput as error:
            raise type(error)(f"The candidate cannot be loaded: {error}") from error


def is_runtime_file(spec: ModelSpec) -> bool:
    """Return whether a model is a file that a runtime runs as it is, by its suffix."""
    suffix = Path(spec.checkpoint).suffix.lower()
    return bool(suffix) and any(suffix == each.suffix for each in RUNTIMES.values() if each.is_installed)


def outputs_for(task: Task, network: ComparedFile, images: Tensor, *, like: object = None) -> tuple[str, ...]:
    """Return the first outputs of a file that ``task`` can read: all together, else one alone.

    With ``like``, what the reference returned for the images, outputs of the same shape come first.

    Raises:
        UnsupportedModel: it can read none; the message lists them.
    """
    names = tuple(name for name, _ in network.file.facts.outputs)
    wanted = getattr(like, "shape", None)

    def rank(name: str) -> int:
        return 0 if any(word in name.lower() for word in _LIKELY) else 1

    fitting = []
    for chosen in (names, *((name,) for name in sorted(names, key=rank) if len(names) > 1)):
        network.file.choose(chosen)
        try:
            raw = network.run(images)
            task.check_output(raw, len(images))
        except UnsupportedModel:
            continue
        if wanted is None or getattr(raw, "shape", None) == wanted:
            return chosen
        fitting.append(chosen)
    network.file.choose(names)
    if fitting:
        return fitting[0]
    listed = ", ".join(f"“{name}” {shape_text(shape)}" for name, shape in network.file.facts.outputs[:8])
    raise UnsupportedModel(f"No output of the file is one of {task.label.lower()}: {listed}. Choose another task.")


def answers_of(network: Network, images: Tensor) -> list[object]:
    """Return the raw outputs of a network, call by call."""
    return [network.run(part) for part in in_calls(network, images)]


def shape_problem(reference: Sequence[int], candidate: Sequence[int]) -> str:
    """Return why outputs of these shapes, images first, are not compared, to follow the name of the candidate."""
    if len(reference) == len(candidate) == 2:
        numbers = plural(candidate[1], "number"), reference[1]
        more = candidate[1] - reference[1]
        hint = {1: "perhaps a class for the background is added", -1: "perhaps a class for the background is left out"}
        said = f": {hint[more]}" if more in hint else ""
        return f"gives {numbers[0]} for each image, the reference {numbers[1]}{said}."
    return f"gives outputs of shape {tuple(candidate)}, the reference of {tuple(reference)}."


def _input_problem(facts: FileFacts, image: Sequence[int]) -> str:
    """Return why a file cannot take images (C, H, W) of the reference, to follow its name; empty where it can."""
    own = facts.image_shape
    if facts.input_type == "int8":
        return f"takes int8 numbers ({facts.takes}), whose scale the file does not tell. Check it with a float input."
    if all(length in (None, wanted) for length, wanted in zip(own, image, strict=True)):
        return ""
    if own[0] not in (None, image[0]):
        return f"takes images of {plural(own[0] or 0, 'channel')} ({facts.takes}), the reference of {image[0]}."
    sides = [" × ".join(str(length or "any") for length in shape[:0:-1]) for shape in (own, image)]
    return f"takes images of {sides[0]} pixels ({facts.takes}), the reference of {sides[1]}."


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
    if told is not None and (told.mean, told.std, told.channel_order) != (
        preprocessing.mean,
        preprocessing.std,
        preprocessing.channel_order,
    ):
        yield "It says itself that its images are prepared otherwise than those of the reference."


def _from_facts(spec: ModelSpec, facts: FileFacts) -> LoadedModel:
    """Return the model that a file describes, with defaults; only the runtime opens its network."""
    channels, height, width = facts.image_shape
    side = spec.img_size or USUAL_SIZES[0]
    shape = channels or 3, height or side, width or side
    told = preparation_in(facts.metadata, shape)
    notes = ["The reference is run in onnxruntime alone: senseapp cannot read all of its operators."]
    if told is None:
        mean, std = (((0.0,), (1 / _PIXELS,)) if facts.takes_pixels else (IMAGENET_MEAN, IMAGENET_STD))  # fmt: skip
        told = Preprocessing(
            input_shape=shape,
            mean=channel_statistics(mean, shape[0]),
            std=channel_statistics(std, shape[0]),
            crop_pct=usual_crop(shape),
        )
        notes.append("It does not say how its images are prepared: they get mean and std of ImageNet.")
    last = facts.outputs[0][1][-1:] or (None,)
    count = last[0] or 0
    return LoadedModel(
        module=nn.Identity(),
        title=file_name(spec),
        preprocessing=told,
        num_classes=count,
        pretrained=True,
        class_names=class_names_in(facts.metadata, count),
        notes=tuple(notes),
    )


__all__ = [
    "ComparedFile",
    "Interpreted",
    "NotComparable",
    "OpenSide",
    "SideOpener",
    "answers_of",
    "as_shares",
    "is_runtime_file",
    "kind_of_outputs",
    "outputs_for",
    "shape_problem",
]
