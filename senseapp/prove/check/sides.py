"""Opens the two sides of a check: files as they are, weights in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from senseapp.core.errors import InvalidCheckpoint, InvalidInput, InvalidSpec
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.measure.context import MeasurementContext
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.onnx.metadata import preparation_in
from senseapp.networks.sources.load import load_model
from senseapp.prove.check.outputs import OpenSide
from senseapp.records.check import file_name
from senseapp.records.spec import ModelSpec
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.foreign import FileFacts, ForeignFile, with_weights_beside
from senseapp.tasks import Task


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
            content = with_weights_beside(path) if self.own_disk else path.read_bytes()
            return ForeignFile(content), content
        except OSError as error:
            raise InvalidCheckpoint(f"{path.name} cannot be read: {error.strerror}.") from error
        except InvalidInput as error:
            raise type(error)(f"{path.name} cannot be checked: {str(error).rstrip('.')}.") from error

    def weights(
        self, spec: ModelSpec, loaded: LoadedModel, images: ImageSet, preprocessing: Preprocessing, task: Task
    ) -> OpenSide:
        """Return a network in PyTorch as a side."""
        context = MeasurementContext.prepare(loaded.module, images, own=True, task=task)
        stored = Path(spec.checkpoint) if spec.checkpoint else None
        size = context.profile.num_bytes if stored is None else stored.stat().st_size
        return OpenSide(spec=spec, preprocessing=preprocessing, context=context, file_bytes=size, notes=loaded.notes)

    def candidate(
        self, spec: ModelSpec, reference: ModelSpec, images: ImageSet, preprocessing: Preprocessing, task: Task
    ) -> OpenSide:
        """Open the candidate; a checkpoint belongs to the architecture of the reference where it names none.

        Raises:
            NotComparable: it takes other images than the reference.
            InvalidInput: it cannot be opened.
        """
        if not is_runtime_file(spec):
            return self.weights(spec, self._candidate_weights(spec, reference), images, preprocessing, task)
        file, content = self.file(spec)
        size = len(content)
        side = OpenSide(spec=spec, preprocessing=preprocessing, file=file, content=content, file_bytes=size)
        problem = _input_problem(file.facts, tuple(images.batch(0, 1).shape[1:]))
        if problem:
            raise NotComparable(f"{side.name} {problem}", side)
        side.notes = tuple(_notes_on_input(file.facts, preprocessing))
        return side

    def _candidate_weights(self, spec: ModelSpec, reference: ModelSpec) -> LoadedModel:
        if spec.library == "auto":
            if is_runtime_file(reference):
                raise InvalidSpec(
                    f"{file_name(spec)} holds weights, and the original is an ONNX file, which names no architecture. "
                    "Choose an original of the same architecture, or export the compressed file as ONNX."
                )
            spec = replace(reference, pretrained=False, checkpoint=spec.checkpoint, network=spec.network)
        try:
            return load_model(spec, progress=self.progress)
        except InvalidInput as error:
            raise type(error)(f"The compressed file cannot be loaded: {error}") from error


def is_runtime_file(spec: ModelSpec) -> bool:
    """Return whether a model is a file that a runtime runs as it is, by its suffix."""
    suffix = Path(spec.checkpoint).suffix.lower()
    return bool(suffix) and any(suffix == each.suffix for each in RUNTIMES.values() if each.is_installed)


def shape_problem(reference: Sequence[int], candidate: Sequence[int]) -> str:
    """Return why outputs of these shapes, images first, are not compared, to follow the name of the candidate."""
    if len(reference) == len(candidate) == 2:
        numbers = plural(candidate[1], "number"), reference[1]
        more = candidate[1] - reference[1]
        hint = {1: "perhaps a class for the background is added", -1: "perhaps a class for the background is left out"}
        said = f": {hint[more]}" if more in hint else ""
        return f"gives {numbers[0]} for each image, the original {numbers[1]}{said}."
    return f"gives outputs of shape {tuple(candidate)}, the original of {tuple(reference)}."


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
