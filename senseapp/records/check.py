"""A check of one file against another: settings, measurements of both, and whether the limits hold."""

import math
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from senseapp.core.errors import InvalidSpec, check_counts
from senseapp.descriptions.runtimes import PROCESSORS
from senseapp.metrics import METRICS, MetricChange
from senseapp.records.answers import ChangedAnswers
from senseapp.records.deployment import Median, OperatorShare
from senseapp.records.promise import CONFIDENCE
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.tasks.reading import Reading

FILES_ARE_OPEN, CANDIDATE_RUNS = "Running the original", "Running the compressed file"
"""The step that begins once both files are open and can be compared."""
BUSY = "The times were measured while the computer was busy."
"""Note on a check whose times other programs may have changed."""
SIMULATED_SECONDS = 600.0
"""That the simulator of a processor may take, where nothing else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """Settings of a check: reference, candidate, images and limits.

    Attributes:
        reference, candidate: ONNX files, checkpoints (the candidate's of the same architecture) or networks by name.
        metric: that the loss is judged by; None takes the one that people judge by.
        max_drop: largest loss, in the unit of the metric's ``delta``; None takes what the metric calls tolerable.
        max_time: largest time of the candidate as a multiple of the reference's; None sets no limit.
        num_samples: images to draw; None takes all.
        candidate_title: what people call the candidate; empty takes the name of its file.
        own_images: how many of the images are those that the candidate was made with, as far as known; where enough
            others are left of them, these are taken.
        own_wanted, own_seed: how many the run of the candidate was to draw, None for a share of all, and its seed.
        processor: simulated, whose answers are checked too; empty for none.
        processor_seconds: that its simulator may take.
    """

    reference: ModelSpec
    candidate: ModelSpec
    data: DataSpec = field(default_factory=DataSpec)
    metric: str | None = None
    max_drop: float | None = None
    max_time: float | None = None
    num_samples: int | None = None
    seed: int = 0
    threads: int = 1
    batch: int = 1
    candidate_title: str = ""
    own_images: int = 0
    own_wanted: int | None = None
    own_seed: int = 0
    processor: str = ""
    processor_seconds: float = SIMULATED_SECONDS

    def __post_init__(self) -> None:
        if self.metric is not None:
            METRICS.named(self.metric)
        if self.max_drop is not None and not 0 <= self.max_drop < math.inf:
            raise InvalidSpec(f"The largest loss is a number of at least 0, got {self.max_drop}.")
        if self.max_time is not None and not 0 < self.max_time < math.inf:
            raise InvalidSpec(f"The largest time is a multiple of the original's, above 0, got {self.max_time}.")
        check_counts(self, "num_samples", "threads", "batch")
        if self.processor:
            PROCESSORS.named(self.processor)
        if not 0 < self.processor_seconds < math.inf:
            raise InvalidSpec(f"The seconds of a simulated processor are above 0, got {self.processor_seconds}.")

    @property
    def title(self) -> str:
        """Both files by name: ``quick.onnx against float.onnx``."""
        return f"{self.candidate_title or file_name(self.candidate)} against {file_name(self.reference)}"


def file_name(model: ModelSpec) -> str:
    """Return the name of a side of a check: of its file, else the title of the network."""
    return PurePath(model.checkpoint).name or model.title


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """One side of a check: ``kind`` says what it is, ``takes`` and ``returns`` are its input and outputs, in words.

    ``file_bytes`` of weights are those of the runtime's file made of them, else in memory. ``seconds`` are of one call;
    None where it was not timed.
    """

    name: str
    kind: str
    file_bytes: int
    takes: str = ""
    returns: str = ""
    seconds: Median | None = None
    notes: tuple[str, ...] = ()


LimitName = Literal["comparable", "loss", "time", "processor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLimit:
    """One condition: whether it holds, and in one sentence why.

    ``comparable`` is that both answer the same images in the same form, ``processor`` the loss on a simulated one. It
    is ``undecided`` where more images, or a quieter machine, could still show that it holds.
    """

    name: LimitName
    holds: bool
    sentence: str
    undecided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBound:
    """The measured loss and the value that it exceeds with a probability of at most 1 − ``confidence``.

    Attributes:
        upper: bound of the loss on further images like these, which is compared with the limit ``allowed``.
        how: what the bound rests on, in words.
        guaranteed: whether it holds for any number of images, not only for many.
        images_needed: images that would show the limit at the measured rate; None where unknown, or where none would.
    """

    metric: str
    delta: float
    upper: float
    allowed: float
    how: str
    guaranteed: bool
    images: int
    confidence: float = CONFIDENCE
    images_needed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference:
    """A tensor, or the output of a layer, that both networks compute, in the ``shape`` of one batch.

    Attributes:
        name: in the reference; ``other`` in the candidate, where that is another name.
        operator, node: that compute it in the reference; no node for layers.
        difference: Euclidean norm of the difference over that of the reference; infinite where one is not finite.
    """

    name: str
    operator: str
    shape: tuple[int, ...]
    difference: float
    other: str = ""
    node: str = ""


APART, SHARP = 0.1, 4.0
"""Difference from which two tensors are apart, and the factor over all before that makes it a sudden one."""
ALIKE = 1e-3
"""Relative; float32 kernels that add in another order differ by less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDivergence:
    """Where two networks begin to compute different numbers: tensors in the order in which the reference computes them.

    They were ``matched_by`` name, order, or as outputs of a layer.
    """

    tensors: tuple[TensorDifference, ...]
    matched_by: Literal["name", "order", "layer"]
    images: int

    @property
    def first(self) -> TensorDifference | None:
        """The first tensor that is apart: at a sudden step if there is one, else the first above :data:`APART`."""
        before, gradual = ALIKE, None
        for each in self.tensors:
            if each.difference >= APART:
                if each.difference >= SHARP * before:
                    return each
                gradual = gradual or each
            before = max(before, each.difference)
        return gradual


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Everything that a check found.

    Attributes:
        spec: with names of files only.
        images: that both were run on; 0 where they could not be compared.
        preparation: how images become inputs, in words.
        reading: of the reference's outputs, images and labels, by which both files are read.
        changes: of every metric, candidate against reference.
        limits: the conditions; all must hold.
        bound: of the loss; None where they could not be compared.
        time_ratio: candidate to reference, call by call; None where it was not timed.
        findings: likely causes of a loss, in sentences.
        answers: differences by class and by picture; None where outputs are no answers.
        divergence: where tensors part; None where none could be compared.
        operators: what each kind of operator takes in both files; empty where one has no file or was not timed so.
    """

    spec: CheckSpec
    reference: CheckedFile
    candidate: CheckedFile
    images: int
    labelled: bool
    preparation: str
    limits: tuple[CheckedLimit, ...]
    machine: str
    changes: tuple[MetricChange, ...] = ()
    bound: LossBound | None = None
    time_ratio: Median | None = None
    findings: tuple[str, ...] = ()
    answers: ChangedAnswers | None = None
    divergence: TensorDivergence | None = None
    operators: tuple[OperatorShare, ...] = ()
    notes: tuple[str, ...] = ()
    reading: Reading | None = None

    @property
    def holds(self) -> bool:
        """Whether every condition holds."""
        return all(each.holds for each in self.limits)

    @property
    def verdict(self) -> Literal["Holds", "Not shown to hold", "Fails"]:
        """The verdict in words."""
        if self.holds:
            return "Holds"
        return "Not shown to hold" if all(each.holds or each.undecided for each in self.limits) else "Fails"

    @property
    def headline(self) -> str:
        """The verdict in one sentence, with the first reason where it fails."""
        busy = BUSY if BUSY in self.notes else ""
        if self.holds:
            said = (each.sentence for each in self.limits if each.name != "comparable")
            return f"Holds: {' '.join((*said, busy))}".strip()
        failed = [each for each in self.limits if not (each.holds or (each.undecided and self.verdict == "Fails"))]
        reasons = " ".join(each.sentence for each in failed)
        return f"{self.verdict}: {reasons} {' '.join((*self.findings[:1], busy))}".strip()

    @property
    def metric(self) -> str:
        """The metric that the loss is judged by; empty where there is none."""
        return self.bound.metric if self.bound is not None else ""
