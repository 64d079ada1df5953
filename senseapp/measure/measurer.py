"""Measurement of targets on spans of images, and executors: where the passes of a run are computed.

With adapted weights, each layer is measured with the weights that would be delivered. All levels of a layer share the
second moments of its inputs, computed once in the uncompressed network on the calibration images. One pass computes
those of several layers, limited by memory. Source: see :mod:`senseapp.compressions.obs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from senseapp.compressions import obs
from senseapp.compressions.base import (
    Applied,
    CompressionRequest,
    Compressor,
    LayerWeight,
    Prepared,
    Target,
    UpdateConstraint,
    WeightCompressor,
    build_compressor,
    find_weights,
    ordinary_tensors,
)
from senseapp.core.errors import MeasurementFailed, first_line_of, is_about_memory
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.context import MeasurementContext
from senseapp.measure.plan import PlannedTarget, representative_positions
from senseapp.measure.replay import Prefix, Replay, ReplayMismatch, plain_note
from senseapp.metrics.predictions import Predictions
from senseapp.networks.layer_product import LayerProduct
from senseapp.records.spec import SensitivitySpec

if TYPE_CHECKING:
    from senseapp.measure.sweep import Sweep


Span = tuple[int, int]
_ResultT = TypeVar("_ResultT")
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
    """A model with one compression and its images, in this process or in a worker of a distributed run.

    ``notes`` collects sentences on anything unusual.
    """

    context: MeasurementContext
    compressor: Compressor
    planned: Sequence[PlannedTarget]
    notes: list[str]
    _prefixes: Sequence[Prefix] = ()

    def baseline(self, spans: Sequence[Span]) -> Predictions:
        """Return the uncompressed model's predictions of all images, and time the passes.

        The images of each of ``spans`` are then replayed together; if the result is not equal bit for bit, all
        measurements use whole passes.

        Raises MeasurementFailed if the memory is too small for a single image.
        """

        def attempt() -> Predictions:
            self.context.give_back_memory()
            output = self.context.baseline()
            self.context.give_back_memory()
            self._check_replay(spans, output)
            return output

        try:
            return self._in_smaller_passes(attempt)
        except Exception as error:
            if not is_about_memory(error):
                raise
            raise MeasurementFailed(
                f"{self.context.device} has not enough memory for one image. Choose smaller images, or the cpu."
            ) from error

    def _check_replay(self, spans: Sequence[Span], plain: Predictions) -> None:
        context, known = self.context, self.context.replay_obstacle
        positions = representative_positions(self.planned)
        for start, stop in spans if positions else ():
            context.check_replay((start, stop), positions, plain[start:stop])
        if context.replay_obstacle and not known:
            self.notes.append(plain_note(context.replay_obstacle))

    def measure(self, jobs: Iterable[MeasurementJob], baseline: BaselineOutputs) -> Iterator[JobResult]:
        """Yield the result of each job. Jobs of one span must be consecutive, by ascending position.

        A job is requested after the previous result was consumed, so that ``jobs`` may depend on it.
        """
        for _, of_span in groupby(jobs, key=lambda job: job.span):
            self._prefixes = ()  # before the next ones take memory
            self.context.give_back_memory()
            for job in of_span:
                started = time.perf_counter()
                yield replace(self._measure(job, baseline), seconds=time.perf_counter() - started)
        self._prefixes = ()

    def _measure(self, job: MeasurementJob, baseline: BaselineOutputs) -> JobResult:
        usual = self.context.layout
        try:
            return self._in_smaller_passes(lambda: self._attempt(job, baseline))
        except Exception as error:  # whatever the model raises, only this measurement fails
            if is_about_memory(error):  # smaller passes did not help this target: restore the size
                self.context.layout, self._prefixes = usual, ()
            return JobResult(job=job, seconds=0.0, reason=_reason(error))

    def _in_smaller_passes(self, attempt: Callable[[], _ResultT]) -> _ResultT:
        """Return the result of ``attempt``, with fewer images in each pass for as long as the memory runs out."""
        context, usual = self.context, self.context.layout.micro_batch
        while True:
            try:
                result = attempt()
            except Exception as error:
                if context.layout.micro_batch == 1 or not is_about_memory(error):
                    raise
                context.layout = replace(context.layout, micro_batch=context.layout.micro_batch // 2)
                self._prefixes = ()
            else:
                if context.layout.micro_batch < usual:
                    self.notes.append(
                        f"The memory of {context.device} was too small for passes over {usual} images at once; "
                        f"{context.layout.micro_batch} were taken from there on."
                    )
                return result

    def _attempt(self, job: MeasurementJob, baseline: BaselineOutputs) -> JobResult:
        self._prefixes = self._prefixes or self.context.prefixes(*job.span)
        item, replay = self.planned[job.index], Replay(self.context.model, self.context.trace)
        self._advance(replay, item.position)
        with self.compressor.compress(item.target, job.level) as applied:
            output = self._pass(replay, job)
        return JobResult(
            job=job,
            seconds=0.0,
            moments=baseline.moments(output, *job.span),
            outputs=baseline.recorded_change(output, *job.span),
            applied=applied,
        )

    def _advance(self, replay: Replay, position: int) -> None:
        if self.context.replay_obstacle:
            return
        try:
            self.context.advance(replay, self._prefixes, position)
        except ReplayMismatch as mismatch:  # these images make other calls than the traced one
            self.context.replay_obstacle = str(mismatch)
            self.notes.append(plain_note(self.context.replay_obstacle))

    def _pass(self, replay: Replay, job: MeasurementJob) -> Predictions:
        if self.context.replay_obstacle:
            return self.context.outputs(*job.span)
        try:
            return self.context.resume(replay, self._prefixes)
        except (ReplayMismatch, Exception) as error:  # a whole pass shows whether the model fails or only its replay
            if is_about_memory(error):
                raise
            return self.context.outputs(*job.span)


def _reason(error: Exception) -> str:
    if isinstance(error, MeasurementFailed):
        return str(error)
    first = first_line_of(error, most=300)
    if is_about_memory(error):
        return f"There was not enough memory: {first}. Choose a smaller batch size."
    return f"The compressed model failed: {type(error).__name__}: {first}."


class Executor:
    """Carries out the jobs of a sweep in the calling thread; the numbers of subclasses, elsewhere, are the same."""

    def arrange(self, sweep: Sweep, span_images: int | None) -> int:
        """Prepare for ``sweep`` before its baseline is measured; ``span_images`` are those of a resumed run.

        Returns:
            The most images to measure together; 0: limited by memory.
        """
        return span_images or 0

    def baseline(self, sweep: Sweep) -> Predictions:
        """Return the uncompressed model's predictions of all images, and time the passes."""
        return _measurer_of(sweep).baseline(sweep.chunks())

    def predicted_seconds(self, sweep: Sweep) -> float:
        """Return how long all measurements take: one whole pass, plus each target's share of one at each level."""
        whole = bool(sweep.context.replay_obstacle)
        passes = sum(len(sweep.spec.levels) * (1.0 if whole else item.suffix) for item in sweep.planned) + 1
        return passes * sweep.context.seconds_per_image * len(sweep.context.images)

    def carry_out(self, sweep: Sweep, jobs: Iterable[MeasurementJob]) -> Iterator[JobResult]:
        """Yield a result for each job; results of one target are in the order of their spans.

        A job is requested once the one before it is done.
        """
        return _measurer_of(sweep).measure(jobs, sweep.baseline)

    def environment(self) -> dict[str, str]:
        """Return entries for the environment of a result, besides device and threads, which every result has."""
        return {}

    @property
    def workers(self) -> int:
        """Number of cluster workers that measure; 0 for this machine alone."""
        return 0


def _measurer_of(sweep: Sweep) -> Measurer:
    return Measurer(sweep.context, sweep.compressor, sweep.planned, sweep.notes)


def compressor_for(spec: SensitivitySpec, request: CompressionRequest) -> Compressor:
    """Return the compression that ``spec`` names, with adapted weights if ``spec.adapted``."""
    plain = build_compressor(spec.compression, request)
    return AdaptedCompressor(plain, request) if spec.adapted and isinstance(plain, WeightCompressor) else plain


class AdaptedCompressor(WeightCompressor):
    """Compresses as ``plain`` does, then adapts the layer's weights in closed form.

    Layers whose weight does not multiply rows of inputs keep the weights of ``plain``.

    Attributes:
        left: reasons why layers are not adapted, by layer name.
    """

    def __init__(self, plain: WeightCompressor, request: CompressionRequest) -> None:
        self.targets, self.not_applicable = plain.targets, plain.not_applicable
        self._plain = plain
        self._weights, _ = find_weights(request.model, request.layers)
        self.left = {
            target.layer: reason for target in self.targets if (reason := _obstacle(self._weights[target.layer]))
        }
        self._products = {
            target.layer: LayerProduct(weight.module, tuple(weight.parameter.shape))
            for target in self.targets
            if target.layer not in self.left and (weight := self._weights[target.layer])
        }
        self._moments = obs.InputMoments(request.model, self._products, request.calibration, seed=request.seed)

    def prepare(self, target: Target, level: float) -> Prepared:
        """Compress, and adapt the weights; raises MeasurementFailed if the layer cannot be compressed."""
        prepared, weight = self._plain.prepare(target, level), self._weights[target.layer]
        if target.layer in self.left or prepared.constraint == UpdateConstraint():
            return prepared
        moments, product = self._moments.of(target.layer), self._products[target.layer]
        if not moments.rows:  # the layer does not run on these images
            return prepared
        parameter = weight.parameter
        with ordinary_tensors():
            dense = product.matrix(parameter.detach()).float()
            second = obs.damped(moments.second.to(dense.device), moments.rows)
            found = obs.adapted(dense, second, prepared.constraint).matrix
            if not bool(found.isfinite().all()):
                return prepared
            adapted = product.weight(found, parameter.detach())
        return replace(prepared, weight=lambda: adapted)


def _obstacle(weight: LayerWeight) -> str:
    if not weight.profile.keeps_zeros:
        return "its weight is standardised before use"
    return LayerProduct.obstacle(weight.module)
