"""The two sides of a check, and their outputs: which are read, by what layout, and how they become class scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.measure.context import MeasurementContext
from senseapp.networks.loaded import Preprocessing
from senseapp.records.check import CheckedFile, file_name
from senseapp.records.spec import ModelSpec
from senseapp.runtimes.foreign import ForeignFile, shape_text
from senseapp.tasks import Task
from senseapp.tasks.classification import Classification
from senseapp.tasks.reading import OutputReader

_SMALLEST = 1e-7  # probability whose logarithm is still taken
_SLACK = 0.01  # of rounded probabilities beyond 0 and 1
_PIXELS = 255.0  # of 8 bits, the value of white
_LIKELY = ("logit", "prob", "score", "class", "cls", "pred", "softmax", "output")


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
    # of probabilities that were rounded on the way, away from 1
    sums = bool(((values.sum(dim=1) - 1).abs() <= 0.02).all())
    return PROBABILITIES if sums or like is PROBABILITIES else None


@dataclass(slots=True, kw_only=True)
class OpenSide:
    """One file of a check, open: a :class:`~senseapp.networks.network.Network` for images as the reference takes them.

    Attributes:
        spec: which it is.
        preprocessing: of the images; a file that takes whole numbers gets pixels from 0 to 255 instead.
        file: open in a runtime; None for weights in PyTorch.
        context: the network in PyTorch; None for files of a runtime.
        content: of the file, or of the one that was made of the weights; None without one.
        file_bytes: size on disk, of the weights in memory where there is no file.
        reader: makes of each output of the file what its task reads.
        kind: what outputs are in place of class scores; None for scores.
        notes: sentences on how it was read.
    """

    spec: ModelSpec
    preprocessing: Preprocessing
    file: ForeignFile | None = None
    context: MeasurementContext | None = None
    content: bytes | None = None
    file_bytes: int
    reader: OutputReader | None = None
    kind: OutputKind | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the file or the network."""
        return file_name(self.spec)

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call computes; fewer are filled up."""
        return None if self.file is None else self.file.fixed_batch

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

    def unsaturated(self) -> OpenSide | None:
        """Return the file as :meth:`.ForeignFile.unsaturated` does, read as the file is; None for weights."""
        file = None if self.file is None else self.file.unsaturated()
        return None if file is None else replace(self, file=file)

    @property
    def record(self) -> CheckedFile:
        """Facts of the file, without times."""
        facts = None if self.file is None else self.file.facts
        return CheckedFile(
            name=self.name,
            kind="PyTorch weights" if facts is None else "ONNX file",
            file_bytes=self.file_bytes,
            takes="" if facts is None else facts.takes,
            returns="" if facts is None else facts.returns,
            notes=self.notes,
        )


def read_as(
    task: Task,
    side: OpenSide,
    file: ForeignFile,
    images: Tensor,
    *,
    num_classes: int = 0,
    like: OpenSide | None = None,
) -> Sequence[OutputReader]:
    """Choose the first outputs of the ``file`` of a side that ``task`` can read, all or one, and what reads them.

    Outputs that are shaped as those of the reference, ``like``, come first, and are read as they are.

    Returns:
        All that could read the outputs that were chosen.

    Raises:
        UnsupportedModel: it can read none; the message lists them.
    """
    facts, size = file.facts, (images.shape[2], images.shape[3])
    names = tuple(name for name, _ in facts.outputs)
    wanted = None if like is None else _shapes(like.raw(images))
    found: list[tuple[tuple[str, ...], Sequence[OutputReader]]] = []
    alike = () if like is None or like.file is None else tuple(name for name in like.file.output_names if name in names)
    several = (alike or file.output_names, file.output_names, names)
    for chosen in dict.fromkeys((*several, *((name,) for name in sorted(names, key=_rank)))):
        file.choose(chosen)
        raw = side.raw(images)
        if like is not None and _shapes(raw) == wanted:
            side.reader = like.reader
            return () if like.reader is None else (like.reader,)
        try:
            readers = task.readers(raw, size, num_classes)
            task.check_output(readers[0](raw) if readers else raw, len(images))
        except UnsupportedModel:
            continue
        found.append((chosen, readers))
    if not found:
        file.choose(names)
        listed = ", ".join(f"“{name}” {shape_text(shape)}" for name, shape in facts.outputs[:8])
        raise UnsupportedModel(f"No output of the file is one of {task.label.lower()}: {listed}. Choose another task.")
    chosen, readers = found[0]
    file.choose(chosen)
    side.reader = next(iter(readers), None)
    return readers


def _rank(name: str) -> int:
    return 0 if any(word in name.lower() for word in _LIKELY) else 1


def _shapes(raw: object) -> list[tuple[int, ...]]:
    parts = raw if isinstance(raw, list | tuple) else [raw]
    return [tuple(getattr(each, "shape", ())) for each in parts]
