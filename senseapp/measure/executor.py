"""Where the passes of a run are made: what is ordered, what comes back, and who carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from senseapp.measure.measurer import JobResult, MeasurementJob, Measurer
from senseapp.metrics.predictions import Predictions

if TYPE_CHECKING:
    from senseapp.measure.sweep import Sweep


class Executor(Protocol):
    """Carries out the jobs of a sweep, here or elsewhere; the results are the same numbers wherever it is."""

    def arrange(self, sweep: Sweep, span_images: int | None) -> int:
        """Get ready for ``sweep``, before its baseline is measured; ``span_images`` are those of a resumed run.

        Returns:
            The most images that should be measured together; 0 leaves that to the memory here.
        """

    def baseline(self, sweep: Sweep) -> Predictions:
        """Return the uncompressed model's predictions of all images, and time the passes."""

    def predicted_seconds(self, sweep: Sweep) -> float:
        """Return how long all measurements take."""

    def carry_out(self, sweep: Sweep, jobs: Iterable[MeasurementJob]) -> Iterator[JobResult]:
        """Yield a result for each job; those of one target come in the order of their spans."""

    def environment(self) -> dict[str, str]:
        """Return what a result should say about it."""

    @property
    def workers(self) -> int:
        """How many workers of a cluster measure; 0 for this machine alone."""


@dataclass(slots=True)
class LocalExecutor:
    """Everything in the calling thread, one measurement after the other."""

    workers: ClassVar[int] = 0
    _latest: Measurer | None = None

    def arrange(self, sweep: Sweep, span_images: int | None) -> int:
        """Leave the cut into spans to the memory of this machine, unless the run began elsewhere."""
        return span_images or 0

    def baseline(self, sweep: Sweep) -> Predictions:
        """Measure all images here; where they are measured all at once, keep some of it for what comes."""
        spans = sweep.chunks()
        return self._probe(sweep).baseline(spans, record_bytes=sweep.recording_bytes() if len(spans) == 1 else 0)

    def predicted_seconds(self, sweep: Sweep) -> float:
        """Return the time of one whole pass and of each target's share of one, at each level."""
        whole = bool(sweep.context.replay_obstacle)
        passes = sum(len(sweep.spec.levels) * (1.0 if whole else item.suffix) for item in sweep.planned) + 1
        return passes * sweep.context.seconds_per_image * len(sweep.context.images)

    def carry_out(self, sweep: Sweep, jobs: Iterable[MeasurementJob]) -> Iterator[JobResult]:
        """Measure in the order given, and look at a job only once the one before it is done."""
        return self._probe(sweep).measure(jobs, sweep.baseline)

    def environment(self) -> dict[str, str]:
        """Say nothing more than the device and its threads."""
        return {}

    def _probe(self, sweep: Sweep) -> Measurer:
        latest = self._latest
        if latest is None or latest.context is not sweep.context or latest.planned is not sweep.planned:
            latest = self._latest = Measurer(sweep.context, sweep.compressor, sweep.planned, sweep.notes)
        return latest  # the same for a whole run, as it finds out how the model can be run
