"""Adding up one layer's measurements over chunks of images, and turning sums into reported changes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import Tensor

from senseapp.compressions.base import Applied
from senseapp.measure.plan import PlannedTarget
from senseapp.metrics import METRICS, MetricChange, change_of, divergence_among, merge_moments, moments_of
from senseapp.metrics.predictions import Predictions, num_bytes
from senseapp.records.measurement import LayerMeasurement, RecordedOutputs, Status

Key = tuple[str, float]
_MOST_RECORDED_IMAGES = 256
_COMPARED_BYTES = 64 * 2**20  # of one side; as float64 and with what metrics compute, some ten times that
_MOST_RECORDED = 1_000_000  # numbers, over all measurements: 2 MB, and a few ms for each round of the solver


class BaselineOutputs:
    """The uncompressed model's predictions of N images, with fewer rows while it is being measured.

    All others are compared with them, by ``metrics``; ``targets`` are labels of the images, or None. Of the first
    ``recorded_images``, what predicts layers together is recorded.
    """

    def __init__(self, outputs: Predictions, targets: Any, metrics: Sequence[str], *, recorded_images: int = 0) -> None:
        self.outputs = outputs
        self.targets = targets
        self.metrics = tuple(metrics)
        self.recorded_images = recorded_images

    def moments(self, output: Predictions, start: int, stop: int) -> dict[str, tuple[float, ...]]:
        """Return each metric's moments over images ``start`` to ``stop``, whose predictions are ``output``."""
        return {name: self.moments_of(name, output, start, stop) for name in self.metrics}

    def moments_of(self, name: str, output: Predictions, start: int, stop: int) -> tuple[float, ...]:
        """Return the moments of one metric over images ``start`` to ``stop``, whose predictions are ``output``.

        Metrics compute in float64; so many images are compared at a time that this takes little memory.
        """
        together = max(1, _COMPARED_BYTES * len(output) // max(1, num_bytes(output)))
        parts = []
        for low in range(start, max(stop, start + 1), together):
            high = min(low + together, stop)
            targets = None if self.targets is None else self.targets[low:high]
            parts.append(moments_of(name, self.outputs[low:high], output[low - start : high - start], targets))
        return functools.reduce(functools.partial(merge_moments, name), parts)

    def recorded(self) -> RecordedOutputs | None:
        """Return what is recorded of the uncompressed model; None where nothing is."""
        name = divergence_among(self.metrics)
        if name is None or not self.recorded_images or not len(self.outputs):
            return None
        outputs = self.outputs[: self.recorded_images]
        values = METRICS[name].recorded(outputs, outputs)
        return RecordedOutputs(metric=name, size=values.shape[1], values=_float16(values))

    def recorded_change(self, output: Predictions, start: int, stop: int) -> bytes:
        """Return how ``output`` changes what is recorded of the images from ``start`` to ``stop``, float16."""
        name, stop = divergence_among(self.metrics), min(stop, self.recorded_images)
        if name is None or stop <= start:
            return b""
        before, after = self.outputs[start:stop], output[: stop - start]
        record = METRICS[name].recorded
        return _float16(record(before, after) - record(before, before))

    def values(self) -> dict[str, float]:
        """Return the uncompressed model's own metrics; none before anything is measured."""
        if not len(self.outputs):
            return {}
        moments = self.moments(self.outputs, 0, len(self.outputs))
        return {name: change_of(name, sums).baseline for name, sums in moments.items()}


class MeasurementAccumulator:
    """Sums by layer and level, from the measurements that are done already and those that follow."""

    def __init__(self, done: Iterable[LayerMeasurement] = (), *, stops: Collection[int] = ()) -> None:
        """Take over ``done``, except partial ones that end elsewhere than at one of ``stops``."""
        self._history: dict[Key, list[LayerMeasurement]] = {}
        for item in done:
            if not item.estimated and (item.status is not Status.MEASURED or _images(item) in stops):
                self._history.setdefault(item.key, []).append(item)

    def images_done(self, key: Key) -> float:
        """Return how many images ``key`` has been measured on; infinite if it ended otherwise."""
        items = self._history.get(key)
        if not items:
            return 0
        return _images(items[-1]) if items[-1].status is Status.MEASURED else float("inf")

    def change(self, key: Key, metric: str, *, stop: int) -> MetricChange | None:
        """Return the change of ``metric`` for ``key`` as it was known once ``stop`` images were measured."""
        changes = [item.change(metric) for item in self._history.get(key, ()) if 0 < _images(item) <= stop]
        return changes[-1] if changes else None

    def add(
        self,
        planned: PlannedTarget,
        level: float,
        moments: dict[str, tuple[float, ...]],
        applied: Applied,
        seconds: float,
        outputs: bytes = b"",
    ) -> LayerMeasurement:
        """Add a chunk's sums, and what it recorded, and return the measurement over all images so far."""
        target = planned.target
        history = self._history.setdefault((target.layer, level), [])
        before = history[-1] if history else None
        changes = []
        for name, sums in moments.items():
            earlier = before.change(name) if before else None
            changes.append(change_of(name, merge_moments(name, earlier.moments, sums) if earlier else sums))
        measurement = LayerMeasurement(
            layer=target.layer,
            level=level,
            status=Status.MEASURED,
            changes=tuple(changes),
            group=target.group,
            members=target.members,
            achieved_level=applied.achieved_level,
            removed_params=applied.removed_params,
            removed_macs=applied.removed_macs,
            seconds=seconds + (before.seconds if before else 0.0),
            outputs=(before.outputs if before else b"") + outputs,
        )
        history.append(measurement)
        return measurement

    def fail(self, planned: PlannedTarget, level: float, reason: str, seconds: float) -> LayerMeasurement:
        """Record that ``planned`` could not be measured at ``level``."""
        target = planned.target
        measurement = LayerMeasurement(
            layer=target.layer,
            level=level,
            status=Status.FAILED,
            group=target.group,
            members=target.members,
            seconds=seconds,
            reason=reason,
        )
        self._history.setdefault(measurement.key, []).append(measurement)
        return measurement


def images_to_record(metrics: Sequence[str], *, num_images: int, num_outputs: int, measurements: int) -> int:
    """Return of how many images outputs are recorded, so that those of all ``measurements`` stay small together."""
    name = divergence_among(metrics)
    size = METRICS[name].recorded_size(num_outputs) if name else 0
    most = _MOST_RECORDED // (size * measurements) if size and measurements else 0
    return min(num_images, _MOST_RECORDED_IMAGES, most)


def _float16(values: Tensor) -> bytes:
    return values.cpu().half().numpy().tobytes()


def _images(item: LayerMeasurement) -> int:
    return item.changes[0].num_samples if item.changes else 0
