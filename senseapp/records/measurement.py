"""Results: one measurement of a layer at a level, and everything that a run found."""

import enum
from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from senseapp.core.texts import plural
from senseapp.descriptions import CompressionConfig
from senseapp.metrics import METRICS, MetricChange, judging_among
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import RunSpec
from senseapp.tasks import task_named
from senseapp.tasks.reading import Reading


class Status(enum.StrEnum):
    """How a measurement ended."""

    MEASURED = "measured"
    NOT_APPLICABLE = "not_applicable"
    FAILED = "failed"


def change_in(changes: Iterable[MetricChange], metric: str) -> MetricChange | None:
    """Return the change of ``metric``; None if it was not measured."""
    for change in changes:  # a quarter of the time of a generator, for each of 20,000 measurements
        if change.metric == metric:
            return change
    return None


def loss_with_interval(change: MetricChange) -> str:
    """Return the loss and its 95 % interval: ``6.4 points (5.0 points to 7.9 points)``."""
    text = METRICS[change.metric].change_text
    return f"{text(change.delta)} ({text(change.ci_low)} to {text(change.ci_high)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasurement:
    """The effect of one level on one layer, or on one coupled group that can only be compressed together.

    Attributes:
        layer: the layer, or the first member of its group in execution order.
        level: fraction (sparsity, pruning) or bits (quantization) that was asked for.
        changes: one entry per metric; empty unless measured.
        estimated: True if the quick scan predicted the changes from one backward pass.
        images_passed: of an estimate, on how many images a true pass corrected it; 0 where none did.
        group, members: id and layers of the coupled group, the first included; no id and the layer if it stands alone.
        achieved_level: the level truly reached (channels are whole numbers).
        removed_params: weights zeroed or removed, over all members.
        removed_macs: multiply-accumulates that a kernel skipping them would save, for one image.
        reason: one sentence if it was not applicable or failed.
        outputs: how what :class:`RecordedOutputs` keeps differs, float16 (images, size), in C order; empty where it is
            not kept.
    """

    layer: str
    level: float
    status: Status
    changes: tuple[MetricChange, ...] = ()
    estimated: bool = False
    images_passed: int = 0
    group: str = ""
    members: tuple[str, ...] = ()
    achieved_level: float = 0.0
    removed_params: int = 0
    removed_macs: int = 0
    seconds: float = 0.0
    reason: str = ""
    outputs: bytes = b""

    @property
    def key(self) -> tuple[str, float]:
        """Layer and level; a later measurement with the same key replaces an earlier one."""
        return self.layer, self.level

    def change(self, metric: str) -> MetricChange | None:
        """Return the change of ``metric``, or None if it was not measured."""
        return change_in(self.changes, metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOutputs:
    """Outputs of the uncompressed model for the first images, stored to predict layers together.

    They are :meth:`~senseapp.metrics.Metric.recorded` of the metric, float16 (images, size) in C order.
    """

    metric: str
    size: int
    values: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings:
    """How the passes of a run were made; their precision is that of the result.

    Attributes:
        channels_last: (N, H, W, C) in memory instead of (N, C, H, W).
        micro_batch: images in one pass.
        images_at_once: most images measured together; 0 for as many as fit.
        images_in_span: images that were measured together; 0 where that is unknown.
        workers: of the cluster that measured; 0 for this machine.
    """

    channels_last: bool = False
    micro_batch: int = 16
    images_at_once: int = 0
    images_in_span: int = 0
    workers: int = 0


def latest(measurements: Iterable[LayerMeasurement]) -> tuple[LayerMeasurement, ...]:
    """Keep the last measurement of each layer and level, in order of first appearance."""
    return tuple({measurement.key: measurement for measurement in measurements}.values())


@dataclass(frozen=True, kw_only=True)  # no slots, so that answers about thousands of measurements can be kept
class RunResult:
    """Everything one run found.

    Attributes:
        metric: the one that ranks layers.
        baseline: of the uncompressed model, by metric.
        measurements: one per layer (or group) and level; empty in quick mode.
        estimates: those of the quick scan, if it ran.
        precision: of the forward passes, as decided (``fp32`` or ``bf16``).
        method: ``replay`` or ``plain``, with the reason in ``notes`` when plain.
        agreement: Spearman between estimate and measurement, by level, where both exist.
        environment: versions, device, threads; for reading only.
        summary: the finding in one sentence; empty while a run goes on.
        recorded: of the uncompressed model's outputs; None where nothing is kept.
        reading: how outputs, images and class numbers were read; None for imported figures.
    """

    spec: RunSpec
    profile: ModelProfile
    metric: str
    baseline: dict[str, float]
    measurements: tuple[LayerMeasurement, ...]
    estimates: tuple[LayerMeasurement, ...] = ()
    num_samples: int = 0
    has_labels: bool = True
    precision: str = "fp32"
    method: str = "replay"
    agreement: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    passes: PassSettings = field(default_factory=PassSettings)
    seconds: float = 0.0
    summary: str = ""
    recorded: RecordedOutputs | None = None
    reading: Reading | None = None

    @property
    def compression(self) -> CompressionConfig:
        """Settings of the compression that was measured."""
        return self.spec.sensitivity.compression

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels in ascending order."""
        return tuple(sorted(self.spec.sensitivity.levels))

    @cached_property
    def shown(self) -> tuple[LayerMeasurement, ...]:
        """Measured where there is a measurement, estimated elsewhere."""
        return latest((*self.estimates, *self.measurements))

    @cached_property
    def shown_metrics(self) -> Counter[str]:
        """How many layers and levels have a value, by metric; those without any are not among the keys."""
        return Counter(change.metric for item in self.shown for change in item.changes)

    @cached_property
    def kept(self) -> dict[Hashable, Any]:
        """Answers about the result that take a while for thousands of layers, by question; they end with it."""
        return {}

    @property
    def judged_by(self) -> str:
        """The metric that people judge files by: right answers where there are labels, else unchanged ones."""
        if self.spec.data.kind == "imported":
            return judging_among(self.shown_metrics, otherwise=self.metric)
        task, outputs = task_named(self.spec.model.task), self.profile.num_classes
        return judging_among(task.metrics(has_labels=self.has_labels, num_outputs=outputs), otherwise=self.metric)

    def at(self, level: float) -> tuple[LayerMeasurement, ...]:
        """Return the measurements (or estimates) of ``level`` in execution order."""
        return tuple(item for item in self.shown if item.level == level)

    def ranked(self, level: float, metric: str) -> list[tuple[LayerMeasurement, MetricChange]]:
        """Return the layers that have a value at ``level``, the most fragile first."""
        pairs = [
            (item, change)
            for item in self.at(level)
            if item.status is Status.MEASURED and (change := item.change(metric)) is not None
        ]
        return sorted(pairs, key=lambda pair: (-pair[1].delta, pair[0].layer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reused:
    """How many of a run's measurements were taken from an earlier one of the same weights, images and settings."""

    title: str
    taken: int
    total: int

    @property
    def sentence(self) -> str:
        """Sentence for the owner of both runs."""
        return self.note.replace("an earlier run", f"run “{self.title}”", 1)

    @property
    def note(self) -> str:
        """Sentence for all viewers of the result, without the title of the other run."""
        return (
            f"{self.taken} of {self.total} measurements taken from an earlier run, which measured the same weights and "
            "images with the same settings and versions."
        )


def counted(targets: Collection[Collection[str]]) -> str:
    """Return ``21 layers``, or ``14 groups (22 layers)``, for the members of each layer or group."""
    layers = sum(max(1, len(members)) for members in targets)
    if layers == len(targets):
        return plural(layers, "layer")
    return f"{plural(len(targets), 'group')} ({plural(layers, 'layer')})"
