"""Measurement of targets on spans of images in this process, also in each worker of a distributed run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby

from senseapp.compressions.base import Applied, Compressor, Prepared, WeightCompressor
from senseapp.core.errors import MeasurementFailed, first_line_of, is_about_memory
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.context import MeasurementContext
from senseapp.measure.data_flow import UnchangedCalls, unchanged_calls
from senseapp.measure.level_batching import LevelBatch
from senseapp.measure.plan import PlannedTarget, representative_positions
from senseapp.measure.prefix import Prefix, ReplayMismatch, calls_to_record
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
    _flow: UnchangedCalls = field(default_factory=UnchangedCalls)
    _follows_flow: bool = True
    _checked: set[int] = field(default_factory=set)
    _witness: list[Prefix] = field(default_factory=list)  # of one image
    _level_batch: LevelBatch | None = None
    _recorded: dict[Span, Kept] = field(default_factory=dict)

    def baseline(self, spans: Sequence[Span], *, record_bytes: int = 0) -> Predictions:
        """Return the uncompressed model's predictions of all images; times the passes, and may record them.

        The images of each of ``spans`` are then replayed together; if the result is not equal bit for bit, all
        measurements use whole passes.

        Raises:
            MeasurementFailed: the memory is too small for a single image.
        """
        usual = self.context.layout
        while True:
            try:
                self.context.give_back_memory()
                output = self._baseline(record_bytes)
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
                record_bytes = 0
            else:
                self._note_smaller_passes(usual.micro_batch)
                return output

    def _baseline(self, record_bytes: int) -> Predictions:
        context = self.context
        if record_bytes and not context.replay_obstacle:
            positions = [item.position for item in self.planned]
            num_images = len(context.images)
            calls = calls_to_record(context.trace, positions, num_images=num_images, budget_bytes=record_bytes)
            with suppress(ReplayMismatch):  # the first measurement reports it
                output, self._recorded[0, num_images] = context.recorded_baseline(calls)
                return output
        return context.baseline()

    def _check_replay(self, spans: Sequence[Span], plain: Predictions) -> None:
        context, known = self.context, self.context.replay_obstacle
        positions = representative_positions(self.planned)
        for start, stop in spans if positions else ():
            context.check_replay_over((start, stop), positions, plain[start:stop])
        if context.replay_obstacle and not known:
            self._recorded.clear()
            context.layout = replace(context.layout, levels_per_pass=1)
            self.notes.append(plain_note(context.replay_obstacle))

    def measure(self, jobs: Iterable[MeasurementJob], baseline: BaselineOutputs) -> Iterator[JobResult]:
        """Yield the result of each job. Jobs of one span must be consecutive, by ascending position.

        A job is requested after the previous result was consumed, so that ``jobs`` may depend on it; with several
        levels per pass, after the results of the previous group.
        """
        prefixes: Kept = ()
        for span, of_span in groupby(jobs, key=lambda job: job.span):
            prefixes = ()  # before the next ones take memory
            self.context.give_back_memory()
            prefixes = self._recorded.pop(span, ()) or self.context.prefixes(*span)
            self._flow = self._flow_of(span)
            for group in self._grouped(of_span):
                started = time.perf_counter()
                results, prefixes = self._measure_group(group, prefixes, baseline)
                seconds = (time.perf_counter() - started) / len(group)
                yield from (replace(result, seconds=seconds) for result in results)

    def _flow_of(self, span: Span) -> UnchangedCalls:
        if not self._follows_flow or self.context.replay_obstacle:
            return UnchangedCalls()
        context, positions = self.context, [item.position for item in self.planned]
        return unchanged_calls(
            context.trace,
            self.planned,
            num_images=span[1] - span[0],
            budget_bytes=context.recorded_bytes(positions),
        )

    def _grouped(self, jobs: Iterable[MeasurementJob]) -> Iterator[list[MeasurementJob]]:
        """Yield groups of consecutive jobs of one target, at most the levels per pass; full groups at once."""
        group: list[MeasurementJob] = []
        for job in jobs:
            if group and job.index != group[0].index:
                yield group
                group = []
            group.append(job)
            if len(group) >= self.context.layout.levels_per_pass:
                yield group
                group = []
        if group:
            yield group

    def _measure_group(
        self, group: list[MeasurementJob], prefixes: Kept, baseline: BaselineOutputs
    ) -> tuple[list[JobResult], Kept]:
        found, results = self._measure_levels(group, prefixes, baseline), []
        for job in group:
            result = found.get(job)
            if result is None:
                result, prefixes = self._measure(job, prefixes, baseline)
            results.append(result)
        return results, prefixes

    def _measure_levels(
        self, group: list[MeasurementJob], prefixes: Kept, baseline: BaselineOutputs
    ) -> dict[MeasurementJob, JobResult]:
        """Return the results of several levels per pass; if memory runs out, fewer levels go into each pass.

        A failed pass leaves ``prefixes`` intact: it wrote into copies only.
        """
        found: dict[MeasurementJob, JobResult] = {}
        usual, start, lacked = self.context.layout.levels_per_pass, 0, False
        while start < len(group) and self.context.layout.levels_per_pass > 1:
            part = group[start : start + self.context.layout.levels_per_pass]
            try:
                found |= self._attempt_levels(part, prefixes, baseline)
                start += len(part)
            except ReplayMismatch as mismatch:
                self._part_levels(str(mismatch))
            except Exception as error:  # whatever the model raises, measure level by level instead
                if not is_about_memory(error):
                    self._part_levels(
                        f"several in one pass fail ({type(error).__name__}: {first_line_of(error, most=300)})"
                    )
                    return found
                self.context.layout = replace(self.context.layout, levels_per_pass=max(1, len(part) // 2))
                lacked = True
        if lacked:
            self.notes.append(
                f"The memory of {self.context.device} was too small for {usual} levels of a layer in one pass; "
                f"{self.context.layout.levels_per_pass} were taken from there on."
            )
        return found

    def _attempt_levels(
        self, jobs: list[MeasurementJob], prefixes: Kept, baseline: BaselineOutputs
    ) -> dict[MeasurementJob, JobResult]:
        """Return the results of one pass over several levels; missing jobs must be measured separately."""
        level_batch, target = self._level_batch_for(jobs), self.planned[jobs[0].index].target
        if level_batch is None or level_batch.obstacle(target):
            return {}
        self._advance(Replay(self.context.model, self.context.trace), prefixes, self.planned[jobs[0].index].position)
        if self.context.replay_obstacle:
            return {}
        prepared: dict[MeasurementJob, Prepared] = {}
        for job in jobs:
            with suppress(MeasurementFailed):  # the separate measurement reports why
                prepared[job] = level_batch.compressor.prepare(target, job.level)
        if len(prepared) < 2:
            return {}
        outputs = level_batch.outputs(prefixes, target, list(prepared.values()))
        return {
            job: JobResult(
                job=job,
                seconds=0.0,
                moments=baseline.moments(output, *job.span),
                outputs=baseline.recorded_change(output, *job.span),
                applied=prepared[job].applied,
            )
            for job, output in zip(prepared, outputs, strict=True)
        }

    def _level_batch_for(self, jobs: list[MeasurementJob]) -> LevelBatch | None:
        """Return the runner of several levels per pass; None if the model does not allow it, or it is not needed."""
        if len(jobs) < 2 or self.context.replay_obstacle or not isinstance(self.compressor, WeightCompressor):
            return None
        if self._level_batch is None:
            found = LevelBatch.checked(self.context, self.compressor, self.planned, [job.level for job in jobs])
            if isinstance(found, str):
                self._part_levels(found)
                return None
            self._level_batch = found
            self.notes.extend(found.exceptions(self.planned))
        return self._level_batch

    def _part_levels(self, reason: str) -> None:
        self.context.layout = replace(self.context.layout, levels_per_pass=1)
        self._level_batch = None
        self.notes.append(f"Levels were measured one at a time, which takes longer: {reason}.")

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
                self._flow, self._follows_flow = UnchangedCalls(), False  # which takes memory
                prefixes = self.context.prefixes(*job.span)
            else:
                self._note_smaller_passes(usual.micro_batch)
                return result, prefixes

    def _attempt(self, job: MeasurementJob, prefixes: Kept, baseline: BaselineOutputs) -> JobResult:
        item, replay = self.planned[job.index], Replay(self.context.model, self.context.trace)
        self._advance(replay, prefixes, item.position)
        if self._flow.to_check(job.index, self._checked):
            self._keep_for_check(replay, prefixes, job)
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
            return self._resume(replay, prefixes, job)
        except ReplayMismatch:  # the compressed model makes other calls
            return self.context.outputs(*job.span)
        except Exception as error:
            if is_about_memory(error):
                raise
            return self.context.outputs(*job.span)  # shows whether the compressed model fails or only its replay

    def _resume(self, replay: Replay, prefixes: Kept, job: MeasurementJob) -> Predictions:
        unchanged = self._flow[job.index]
        if unchanged:
            try:
                if not self._flow.to_check(job.index, self._checked) or self._is_unchanged(replay, job):
                    return self.context.resume(replay, prefixes, unchanged=unchanged)
                self._leave_flow(prefixes, "what does not depend on a layer changes with it")
            except ReplayMismatch as mismatch:
                self._leave_flow(prefixes, str(mismatch))
        return self.context.resume(replay, prefixes)

    def _keep_for_check(self, replay: Replay, prefixes: Kept, job: MeasurementJob) -> None:
        """Keep what the uncompressed model computes of one image, to compare with the compressed one's."""
        self._witness = self._witness or self.context.prefixes(0, 1)
        self._advance(replay, self._witness, self.planned[job.index].position)
        try:
            self.context.keep_unchanged(replay, self._witness[0], self._flow[job.index])
        except ReplayMismatch as mismatch:
            self._leave_flow(prefixes, str(mismatch))

    def _is_unchanged(self, replay: Replay, job: MeasurementJob) -> bool:
        self._checked.add(job.index)
        return self.context.is_unchanged(replay, self._witness[0], self._flow[job.index])

    def _leave_flow(self, prefixes: Kept, reason: str) -> None:
        """Compute every call after a changed layer again from here on."""
        self._flow, self._follows_flow = UnchangedCalls(), False
        for prefix in prefixes:
            prefix.forget_shared()
        self.notes.append(f"Parallel branches were computed again for each level, which takes longer: {reason}.")

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
