"""Accumulation of one layer's measurements over chunks of images; sums become reported changes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from senseapp.core.registry import grouped
from senseapp.measure.plan import PlannedTarget
from senseapp.metrics import METRICS, MetricChange, change_of, divergence_among
from senseapp.metrics.predictions import Predictions, num_bytes
from senseapp.records.measurement import LayerMeasurement, RecordedOutputs, Status

if TYPE_CHECKING:
    from senseapp.measure.measurer import JobResult

Key: TypeAlias = tuple[str, float]
"""The layer of a target, and a level."""


@dataclass(slots=True, eq=False)
class BaselineOutputs:
    """Predictions of the uncompressed model for N images, the reference of all metrics; fewer rows during the baseline.

    ``targets`` are the images' labels, or None. Of the first ``recorded_images``, outputs are recorded, from which the
    effect of several compressed layers together is predicted.
    """

    outputs: Predictions
    targets: Any
    metrics: Sequence[str]
    recorded_images: int = field(default=0, kw_only=True)

    def moments(self, output: Predictions, start: int, stop: int) -> dict[str, tuple[float, ...]]:
        """Return each metric's moments over images ``start`` to ``stop``, whose predictions are ``output``."""
        return {name: self.moments_of(name, output, start, stop) for name in self.metrics}

    def moments_of(self, name: str, output: Predictions, start: int, stop: int) -> tuple[float, ...]:
        """Return the moments of one metric over images ``start`` to ``stop``, whose predictions are ``output``.

        Metrics compute in float64; images are compared in parts, which bounds the memory.
        """
        # 8 MiB of one side: float64 copies and intermediates of metrics take about ten times that.
        together = max(1, 8 * 2**20 * len(output) // max(1, num_bytes(output)))
        parts = []
        for low in range(start, max(stop, start + 1), together):
            high = min(low + together, stop)
            targets = None if self.targets is None else self.targets[low:high]
            parts.append(METRICS[name].moments(self.outputs[low:high], output[low - start : high - start], targets))
        return functools.reduce(METRICS[name].merge, parts)

    def recorded(self) -> RecordedOutputs | None:
        """Return the recorded outputs of the uncompressed model; None if none are recorded."""
        name = divergence_among(self.metrics)
        if name is None or not self.recorded_images or not len(self.outputs):
            return None
        outputs = self.outputs[: self.recorded_images]
        values = METRICS[name].recorded(outputs, outputs)
        return RecordedOutputs(metric=name, size=values.shape[1], values=_float16(values))

    def recorded_change(self, output: Predictions, start: int, stop: int) -> bytes:
        """Return the change of the recorded outputs for images ``start`` to ``stop``, as float16 bytes."""
        name, stop = divergence_among(self.metrics), min(stop, self.recorded_images)
        if name is None or stop <= start:
            return b""
        before, after = self.outputs[start:stop], output[: stop - start]
        record = METRICS[name].recorded
        return _float16(record(before, after) - record(before, before))

    def values(self) -> dict[str, float]:
        """Return the uncompressed model's own metrics; empty before anything is measured."""
        if not len(self.outputs):
            return {}
        moments = self.moments(self.outputs, 0, len(self.outputs))
        return {name: change_of(name, sums).baseline for name, sums in moments.items()}


class MeasurementAccumulator:
    """Sums by layer and level, from existing and new measurements."""

    def __init__(self, done: Iterable[LayerMeasurement] = (), *, stops: Collection[int] = ()) -> None:
        """Start from ``done``, without partial measurements whose number of images is not in ``stops``."""
        self._history = grouped(
            (item.key, item)
            for item in done
            if not item.estimated and (item.status is not Status.MEASURED or _images(item) in stops)
        )

    def images_done(self, key: Key) -> float:
        """Return the number of images that ``key`` has been measured on; infinite if it failed or is not applicable."""
        items = self._history.get(key)
        if not items:
            return 0
        return _images(items[-1]) if items[-1].status is Status.MEASURED else float("inf")

    def change(self, key: Key, metric: str, *, stop: int) -> MetricChange | None:
        """Return the change of ``metric`` for ``key`` over at most the first ``stop`` images; None if not measured."""
        changes = [item.change(metric) for item in self._history.get(key, ()) if 0 < _images(item) <= stop]
        return changes[-1] if changes else None

    def add(self, planned: PlannedTarget, result: JobResult) -> LayerMeasurement:
        """Add the sums and recorded outputs of a job, or its failure; return the measurement over all images so far."""
        level = result.job.level
        history = self._history.setdefault((planned.target.layer, level), [])
        before = history[-1] if history else None
        if result.reason:
            measurement = planned.measurement(level, Status.FAILED, seconds=result.seconds, reason=result.reason)
        else:
            changes = []
            for name, sums in result.moments.items():
                earlier = before.change(name) if before else None
                changes.append(change_of(name, METRICS[name].merge(earlier.moments, sums) if earlier else sums))
            measurement = planned.measurement(
                level,
                Status.MEASURED,
                result.applied,
                changes=tuple(changes),
                seconds=result.seconds + (before.seconds if before else 0.0),
                outputs=(before.outputs if before else b"") + result.outputs,
            )
        history.append(measurement)
        return measurement


def images_to_record(metrics: Sequence[str], *, num_images: int, num_outputs: int, measurements: int) -> int:
    """Return the number of images whose outputs are recorded, limited by their size over all ``measurements``."""
    name = divergence_among(metrics)
    size = METRICS[name].recorded_size(num_outputs) if name else 0
    # A million numbers over all measurements take 2 MB, and a few ms for each round of the solver.
    most = 1_000_000 // (size * measurements) if size and measurements else 0
    return min(num_images, 256, most)  # solve/joint.py reads no more images


def _float16(values: Tensor) -> bytes:
    return values.cpu().half().numpy().tobytes()


def _images(item: LayerMeasurement) -> int:
    return item.changes[0].num_samples if item.changes else 0
