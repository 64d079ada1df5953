"""A whole run's outcome, and plain questions to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from senseapp.metrics import MetricChange
from senseapp.results.measurement import LayerMeasurement, Status
from senseapp.results.passes import PassSettings
from senseapp.results.profile import ModelProfile
from senseapp.spec.codec import register
from senseapp.spec.run import RunSpec

_USUAL_PASSES = PassSettings()


def latest(measurements: Iterable[LayerMeasurement]) -> tuple[LayerMeasurement, ...]:
    """Keep the last measurement of each layer and level, in order of first appearance."""
    by_key = {}
    for measurement in measurements:
        by_key[measurement.key] = measurement
    return tuple(by_key.values())


@dataclass(frozen=True, kw_only=True)  # no slots, so that answers about thousands of measurements can be kept
class SensitivityResult:
    """Everything one run found.

    Attributes:
        spec: the settings that decide its numbers.
        profile: the model.
        metric: the one that ranks layers.
        baseline: of the uncompressed model, by metric.
        measurements: one per layer (or group) and level; empty in quick mode.
        estimates: those of the quick scan, if it ran.
        num_samples: images used.
        has_labels: whether metrics that need labels could be measured.
        precision: of the forward passes, as decided (``fp32`` or ``bf16``).
        method: ``replay`` or ``plain``, with the reason in ``notes`` when plain.
        agreement: Spearman between estimate and measurement, by level, where both exist.
        notes: sentences about anything approximated, skipped or failed.
        environment: versions, device, threads; for reading only.
        passes: how the forward passes were made.
        seconds: time of the whole run.
        summary: the finding in one sentence; empty in files of earlier versions and while a run goes on.
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
    passes: PassSettings = _USUAL_PASSES
    seconds: float = 0.0
    summary: str = ""

    def __post_init__(self) -> None:
        if self.environment and self.passes == _USUAL_PASSES:
            object.__setattr__(self, "passes", PassSettings.from_environment(self.environment))

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

    def without_folders(self) -> SensitivityResult:
        """Return the result with only the names of the files that it was made from, for people who take it away."""
        return replace(self, spec=self.spec.without_folders())

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


register(SensitivityResult)
