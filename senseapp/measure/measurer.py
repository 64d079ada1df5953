"""Measurement of targets on spans of images in this process, also in each worker of a distributed run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from senseapp.compressions.base import Applied, Compressor
from senseapp.core.errors import MeasurementFailed, first_line_of, is_about_memory
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.context import MeasurementContext
from senseapp.measure.plan import PlannedTarget, representative_positions
from senseapp.measure.prefix import Prefix, ReplayMismatch
from senseapp.measure.replay import Replay, plain_note
from senseapp.metrics.predictions import Predictions

Span = tuple[int, int]
Kept = Sequence[Prefix]
_NOTHING_APPLIED = Applied(achieved_level=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementJob:
    """One measurement to make: a target by its index among those planned, a level, and a span of images."""

    index: int
    level: float
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of a job: sums over the span by metric and the applied compression, or the reason of a failure.

    ``outputs`` is :meth:`BaselineOutputs.recorded_change` of the span.
    """

    job: MeasurementJob
    seconds: float
    moments: dict[str, tuple[float, ...]] = field(default_factory=dict)
    outputs: bytes = b""
    applied: Applied = _NOTHING_APPLIED
    reason: str = ""


@dataclass(slots=True)
class Measurer:
    """A model with one compression and its images; ``notes`` collects sentences on anything unusual."""

    context: MeasurementContext
    compressor: Compressor
    planned: Sequence[PlannedTarget]
    notes: list[str]

    def baseline(self, spans: Sequence[Span]) -> Predictions:
        """Return the uncompressed model's predictions of all images, and time the passes.

        The images of each of ``spans`` are then replayed together; if the result is not equal bit for bit, all
        measurements use whole passes.

        Raises:
            MeasurementFailed: the memory is too small for a single image.
        """
        usual = self.context.layout
        while True:
            try:
                self.context.give_back_memory()
                output = self.context.baseline()
                self.context.give_back_memory()
                self._check_replay(spans, output)
            except Exception as error:
                if not is_about_memory(error):
                    raise
                if self.context.layout.micro_batch == 1:
                    raise MeasurementFailed(
                        f"{self.context.device} has not enough memory for one image. Choose smaller images, or the cpu."
                    ) from error
                self._halve_passes()
            else:
                self._note_smaller_passes(usual.micro_batch)
                return output

    def _check_replay(self, spans: Sequence[Span], plain: Predictions) -> None:
        context, known = self.context, self.context.replay_obstacle
        positions = representative_positions(self.planned)
        for start, stop in spans if positions else ():
            context.check_replay_over((start, stop), positions, plain[start:stop])
        if context.replay_obstacle and not known:
            self.notes.append(plain_note(context.replay_obstacle))

    def measure(self, jobs: Iterable[MeasurementJob], baseline: BaselineOutputs) -> Iterator[JobResult]:
        """Yield the result of each job. Jobs of one span must be consecutive, by ascending position.

        A job is requested after the previous result was consumed, so that ``jobs`` may depend on it.
        """
        prefixes: Kept = ()
        for span, of_span in groupby(jobs, key=lambda job: job.span):
            prefixes = ()  # before the next ones take memory
            self.context.give_back_memory()
            prefixes = self.context.prefixes(*span)
            for job in of_span:
                started = time.perf_counter()
                result, prefixes = self._measure(job, prefixes, baseline)
                yield replace(result, seconds=time.perf_counter() - started)

    def _measure(self, job: MeasurementJob, prefixes: Kept, baseline: BaselineOutputs) -> tuple[JobResult, Kept]:
        """Return the result and the prefixes to continue with; if memory runs out, fewer images go into each pass."""
        usual = self.context.layout
        while True:
            try:
                result = self._attempt(job, prefixes, baseline)
            except Exception as error:  # whatever the model raises, only this measurement fails
                result = JobResult(job=job, seconds=0.0, reason=_reason(error))
                if not is_about_memory(error):
                    return result, prefixes
                if self.context.layout.micro_batch == 1:  # smaller passes did not help this target: restore the size
                    self.context.layout = usual
                    return result, self.context.prefixes(*job.span)
                self._halve_passes()
                prefixes = self.context.prefixes(*job.span)
            else:
                self._note_smaller_passes(usual.micro_batch)
                return result, prefixes

    def _attempt(self, job: MeasurementJob, prefixes: Kept, baseline: BaselineOutputs) -> JobResult:
        item, replay = self.planned[job.index], Replay(self.context.model, self.context.trace)
        self._advance(replay, prefixes, item.position)
        with self.compressor.compress(item.target, job.level) as applied:
            output = self._pass(replay, prefixes, job)
        return JobResult(
            job=job,
            seconds=0.0,
            moments=baseline.moments(output, *job.span),
            outputs=baseline.recorded_change(output, *job.span),
            applied=applied,
        )

    def _advance(self, replay: Replay, prefixes: Kept, position: int) -> None:
        if self.context.replay_obstacle:
            return
        try:
            self.context.advance(replay, prefixes, position)
        except ReplayMismatch as mismatch:  # these images make other calls than the traced one
            self.context.replay_obstacle = str(mismatch)
            self.notes.append(plain_note(self.context.replay_obstacle))

    def _pass(self, replay: Replay, prefixes: Kept, job: MeasurementJob) -> Predictions:
        if self.context.replay_obstacle:
            return self.context.outputs(*job.span)
        try:
            return self.context.resume(replay, prefixes)
        except ReplayMismatch:  # the compressed model makes other calls
            return self.context.outputs(*job.span)
        except Exception as error:
            if is_about_memory(error):
                raise
            return self.context.outputs(*job.span)  # shows whether the compressed model fails or only its replay

    def _halve_passes(self) -> None:
        layout = self.context.layout
        self.context.layout = replace(layout, micro_batch=layout.micro_batch // 2)

    def _note_smaller_passes(self, before: int) -> None:
        if self.context.layout.micro_batch < before:
            self.notes.append(
                f"The memory of {self.context.device} was too small for passes over {before} images at once; "
                f"{self.context.layout.micro_batch} were taken from there on."
            )


def _reason(error: Exception) -> str:
    if isinstance(error, MeasurementFailed):
        return str(error)
    first = first_line_of(error, most=300)
    if is_about_memory(error):
        return f"There was not enough memory: {first}. Choose a smaller batch size."
    return f"The compressed model failed: {type(error).__name__}: {first}."
