"""Executors: where the passes of a run are computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from senseapp.measure.measurer import JobResult, MeasurementJob, Measurer
from senseapp.metrics.predictions import Predictions

if TYPE_CHECKING:
    from senseapp.measure.sweep import Sweep


class Executor(Protocol):
    """Carries out the jobs of a sweep, here or elsewhere; the numbers are the same everywhere."""

    def arrange(self, sweep: Sweep, span_images: int | None) -> int:
        """Prepare for ``sweep`` before its baseline is measured; ``span_images`` are those of a resumed run.

        Returns:
            The most images to measure together; 0: limited by memory.
        """

    def baseline(self, sweep: Sweep) -> Predictions:
        """Return the uncompressed model's predictions of all images, and time the passes."""

    def predicted_seconds(self, sweep: Sweep) -> float:
        """Return how long all measurements take."""

    def carry_out(self, sweep: Sweep, jobs: Iterable[MeasurementJob]) -> Iterator[JobResult]:
        """Yield a result for each job; results of one target are in the order of their spans."""

    def environment(self) -> dict[str, str]:
        """Return entries for the environment of a result."""

    @property
    def workers(self) -> int:
        """Number of cluster workers that measure; 0 for this machine alone."""


@dataclass(slots=True)
class LocalExecutor:
    """Measures everything in the calling thread, one measurement after the other."""

    workers: ClassVar[int] = 0
    _latest: Measurer | None = None

    def arrange(self, sweep: Sweep, span_images: int | None) -> int:
        """Return the span size of a resumed run, or 0: limited by memory."""
        return span_images or 0

    def baseline(self, sweep: Sweep) -> Predictions:
        """Measure all images here."""
        return self._probe(sweep).baseline(sweep.chunks())

    def predicted_seconds(self, sweep: Sweep) -> float:
        """Return the time of one whole pass, plus each target's share of one at each level."""
        whole = bool(sweep.context.replay_obstacle)
        passes = sum(len(sweep.spec.levels) * (1.0 if whole else item.suffix) for item in sweep.planned) + 1
        return passes * sweep.context.seconds_per_image * len(sweep.context.images)

    def carry_out(self, sweep: Sweep, jobs: Iterable[MeasurementJob]) -> Iterator[JobResult]:
        """Measure in the order of ``jobs``; a job is requested once the one before it is done."""
        return self._probe(sweep).measure(jobs, sweep.baseline)

    def environment(self) -> dict[str, str]:
        """Return no entries besides device and threads, which every result has."""
        return {}

    def _probe(self, sweep: Sweep) -> Measurer:
        latest = self._latest
        if latest is None or latest.context is not sweep.context or latest.planned is not sweep.planned:
            latest = self._latest = Measurer(sweep.context, sweep.compressor, sweep.planned, sweep.notes)
        return latest  # kept for the whole run, since it learns how the model can be run
