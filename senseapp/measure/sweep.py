"""The exact measurement: every layer (or coupled group) at every level, by prefix replay."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import nn

from senseapp.compressions.base import CompressionRequest, Compressor
from senseapp.core.errors import InvalidSpec
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, draw
from senseapp.measure.accumulation import BaselineOutputs, MeasurementAccumulator, images_to_record
from senseapp.measure.context import MeasurementContext
from senseapp.measure.measurer import AdaptedCompressor, Executor, JobResult, MeasurementJob, compressor_for
from senseapp.measure.plan import Layout, PlannedTarget, automatic_precision, chunk_spans, plan_targets, usual_layout
from senseapp.metrics import METRICS
from senseapp.metrics.predictions import Predictions, joined, num_bytes, num_not_finite
from senseapp.networks.network import Abilities, images_per_pass
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.records.profile import select_layers
from senseapp.records.resolution import default_metric, undecided
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import Task

CALIBRATION_IMAGES = 64  # for ranges of inputs and adaptation
_SETTLE_FROM = 64  # images before the first look whether ranks have settled


def measure(
    model: nn.Module,
    images: ImageSet,
    spec: SensitivitySpec,
    *,
    task: Task,
    done: Iterable[LayerMeasurement] = (),
    calibration: ImageSet | None = None,
) -> Iterator[LayerMeasurement]:
    """Measure what compressing each layer of ``model`` does to its metrics.

    Progress is the count of measurements yielded, to cancel is to stop iterating, to resume is to pass earlier
    measurements as ``done``. The caller's model, which takes (N, C, H, W), is copied and never changed. Data-driven
    criteria and activation ranges use ``calibration``; None: the first images measured.

    Yields:
        One measurement per target and level, not applicable ones first. If the images do not fit in memory at once, a
        target is yielded again after each span, over all images so far; the last one counts.

    Raises InvalidInput if the settings do not fit the model or the images.
    """
    yield from Sweep.open(model, images, spec, task=task, calibration=calibration).measure(done)


@dataclass(slots=True)
class Sweep:
    """One compression of one model over one image set, prepared: see :func:`measure`.

    At most ``span_images`` are measured together (0: limited by memory); ``notes`` are sentences on anything unusual.
    """

    context: MeasurementContext
    spec: SensitivitySpec
    compressor: Compressor
    planned: list[PlannedTarget]
    baseline: BaselineOutputs
    metric: str
    executor: Executor = field(default_factory=Executor)
    span_images: int = 0
    notes: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        model: nn.Module,
        images: ImageSet,
        spec: SensitivitySpec,
        *,
        task: Task,
        calibration: ImageSet | None = None,
        layout: Layout | None = None,
        own: bool = False,
        executor: Executor | None = None,
        span_images: int | None = None,
        progress: Callable[[str], None] = lambda _sentence: None,
    ) -> Self:
        """Check the settings, choose how passes run, and measure the uncompressed model, unless a scan will.

        ``layout`` and ``span_images`` are those of a resumed run. With ``own``, the model is changed instead of a copy.
        ``progress`` receives one sentence before each slow step.
        """
        images = draw(images, spec.num_samples, spec.seed)
        context = MeasurementContext.prepare(model, images, device=spec.device, own=own, task=task)
        num_outputs, notes = context.profile.num_classes, list(images.notes)
        metrics = task.layer_metrics(has_labels=images.labels is not None, num_outputs=num_outputs)
        metric = _ranking_metric(spec, metrics, images, num_outputs)
        notes += _take_layout(context, spec, layout)
        if note := context.admit(context.look_at_all_images()):
            notes.append(note)
        _require_abilities(spec, context.abilities)
        compressor, planned = bind_compression(context, spec, images if calibration is None else calibration, progress)
        if isinstance(compressor, AdaptedCompressor) and compressor.left:
            name, reason = next(iter(compressor.left.items()))
            notes.append(f"Measured without adapted weights: {name}: {reason} ({len(compressor.left)} such layers).")
        recorded = images_to_record(
            metrics, num_images=len(images), num_outputs=num_outputs, measurements=len(planned) * len(spec.levels)
        )
        unmeasured = BaselineOutputs(torch.empty(0), images.labels, metrics, recorded_images=recorded)
        sweep = cls(context, spec, compressor, planned, unmeasured, metric, executor or Executor(), 0, notes)
        sweep.span_images = sweep.executor.arrange(sweep, span_images)
        if images.labels is not None:
            task.check_targets(images.labels, len(images), num_outputs)
        if spec.mode != "quick":
            progress("Measuring the uncompressed model")
            sweep.complete_baseline()
        return sweep

    @property
    def total(self) -> int:
        """Return the largest number of measurements by :meth:`measure`, without layers that are not applicable."""
        return len(self.planned) * len(self.chunks()) * len(self.spec.levels)

    def chunks(self) -> list[tuple[int, int]]:
        """Return the spans of images that are measured together."""
        return chunk_spans(
            len(self.context.images),
            bytes_per_image=self.bytes_per_image(),
            budget_bytes=self.context.activation_bytes(self._positions),
            micro_batch=self.context.layout.micro_batch,
            settle_from=_SETTLE_FROM if self.spec.until_settled else 0,
            most=self.span_images,
        )

    def bytes_per_image(self) -> int:
        """Return the most bytes that one image and its kept outputs take."""
        return self.context.bytes_per_image(self._positions)

    @property
    def _positions(self) -> list[int]:
        return [item.position for item in self.planned]

    def complete_baseline(self) -> None:
        """Measure the uncompressed model on the images that it has not run on yet."""
        seen = self.baseline.outputs
        if len(seen) >= len(self.context.images):
            return
        if not len(seen):
            self.baseline.outputs = self.executor.baseline(self)
        else:
            self.baseline.outputs = joined([seen, self.context.baseline(len(seen))])
        self.note(*self.prediction_notes())

    def note(self, *sentences: str) -> None:
        """Add those of ``sentences`` to the notes that are not among them."""
        self.notes.extend(each for each in sentences if each not in self.notes)

    def prediction_notes(self) -> Iterator[str]:
        """Yield notes on values left out of predictions, and on the memory of predictions if it is large."""
        context, held = self.context, num_bytes(self.baseline.outputs)
        left_out = context.task.predictions_note(context.trace.output, most_bytes=context.prediction_bytes)
        if left_out:
            yield left_out
        if nothing := context.task.baseline_note(self.baseline.outputs):
            yield nothing
        if held >= 100_000_000:
            yield (
                f"Predictions of the uncompressed model, which all others are compared with, take {held / 1e6:.0f} MB "
                f"of memory for {plural(len(context.images), 'image')}."
            )

    def measure(self, done: Iterable[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        """Yield the measurements missing in ``done``; see :func:`measure`."""
        self.complete_baseline()
        chunks = self.chunks()
        accumulator = MeasurementAccumulator(done, stops=[stop for _, stop in chunks])
        yield from self._not_applicable(accumulator)
        active = {(item.target.layer, level) for item in self.planned for level in self.spec.levels}
        if not self.spec.until_settled:
            yield from self._measure_spans(chunks, active, accumulator)
            return
        for span in chunks:
            yield from self._measure_spans([span], active, accumulator)
            active = self._unsettled(accumulator, active, span[1])

    def _measure_spans(
        self, spans: Sequence[tuple[int, int]], active: set[tuple[str, float]], accumulator: MeasurementAccumulator
    ) -> Iterator[LayerMeasurement]:
        jobs = self._jobs(spans, active, accumulator)
        results = self.executor.carry_out(self, jobs)
        if broken := _broken_rows(self.baseline.outputs):
            results = (JobResult(job=job, seconds=0.0, reason=broken) for job in jobs)
        for result in results:
            job = result.job
            item = self.planned[job.index]
            if accumulator.images_done((item.target.layer, job.level)) < job.span[1]:  # else an earlier span failed
                yield accumulator.add(item, result)

    def _jobs(
        self, spans: Sequence[tuple[int, int]], active: set[tuple[str, float]], accumulator: MeasurementAccumulator
    ) -> Iterator[MeasurementJob]:
        """Yield the remaining jobs, reading the accumulator as late as possible."""
        for span in spans:
            for index, item in enumerate(self.planned):
                for level in self.spec.levels:
                    key = item.target.layer, level
                    if key in active and accumulator.images_done(key) < span[1]:
                        yield MeasurementJob(index=index, level=level, span=span)

    def _not_applicable(self, accumulator: MeasurementAccumulator) -> Iterator[LayerMeasurement]:
        for layer, reason in self.compressor.not_applicable.items():
            for level in self.spec.levels:
                if not accumulator.images_done((layer, level)):
                    yield LayerMeasurement(
                        layer=layer, level=level, status=Status.NOT_APPLICABLE, members=(layer,), reason=reason
                    )

    def _unsettled(
        self, accumulator: MeasurementAccumulator, active: set[tuple[str, float]], stop: int
    ) -> set[tuple[str, float]]:
        """Return those of ``active`` whose interval overlaps that of a neighbour in the ranking."""
        left: set[tuple[str, float]] = set()
        for level in self.spec.levels:
            measured = [
                (key, change)
                for item in self.planned
                if (change := accumulator.change(key := (item.target.layer, level), self.metric, stop=stop)) is not None
            ]
            close = undecided([change.ci_low for _, change in measured], [change.ci_high for _, change in measured])
            left |= {measured[index][0] for index in close}
        return left & active


def _take_layout(context: MeasurementContext, spec: SensitivitySpec, layout: Layout | None) -> list[str]:
    """Run passes in ``layout``, that of a resumed run, or in the usual one; return notes on the choice."""
    if layout is not None:
        context.take(layout)
        return []
    precision, reason = (spec.precision, "") if spec.precision != "auto" else automatic_precision(spec, context.device)
    usual_most = spec.batch_size or context.most_in_pass(256)
    num_images = len(context.images)
    most = min(usual_most, num_images, images_per_pass(context.model) or num_images)
    usual = usual_layout(context.trace, most=most, channels_last=context.channels_last, device=context.device)
    context.take(replace(usual, precision=precision))
    return [reason] if reason else []


def _require_abilities(spec: SensitivitySpec, abilities: Abilities) -> None:
    """Raise InvalidSpec if ``spec`` requires an ability that the network lacks."""
    if spec.compression.description.removes_channels and abilities.structural_pruning:
        raise InvalidSpec(f"{abilities.structural_pruning} Choose sparsity or quantization.")
    if spec.mode == "quick" and abilities.gradients:
        raise InvalidSpec(f"{abilities.gradients} Measure exactly.")


def bind_compression(
    context: MeasurementContext,
    spec: SensitivitySpec,
    source: ImageSet,
    progress: Callable[[str], None] = lambda _sentence: None,
) -> tuple[Compressor, list[PlannedTarget]]:
    """Return the compression that ``spec`` names, bound to the context's model, and its targets by position.

    The first images of ``source`` serve data-driven criteria and activation ranges.
    """
    request = CompressionRequest(
        model=context.model,
        layers=select_layers(context.profile, spec.layers, spec.layer_types),
        calibration=context.arranged_when_read(source, 0, min(CALIBRATION_IMAGES, len(source))),
        seed=spec.seed,
        trace=context.trace,
        progress=progress,
    )
    compressor = compressor_for(spec, request)
    return compressor, plan_targets(compressor.targets, context.trace)


def _ranking_metric(spec: SensitivitySpec, metrics: Sequence[str], images: ImageSet, num_outputs: int) -> str:
    if spec.metric is None:
        return default_metric(metrics, len(images))
    if spec.metric not in metrics and METRICS[spec.metric].proof_only:
        raise InvalidSpec(
            f"The metric {spec.metric} is measured of whole schedules, not of each layer. Choose one of "
            f"{', '.join(metrics)} to rank layers."
        )
    if spec.metric not in metrics:
        needs = METRICS[spec.metric].obstacle(has_labels=images.labels is not None, num_classes=num_outputs)
        needs = needs or f"a model of the task {METRICS[spec.metric].task}"
        raise InvalidSpec(
            f"The metric {spec.metric} cannot be measured here: it needs {needs}. Choose one of {', '.join(metrics)}."
        )
    return spec.metric


def _broken_rows(baseline: Predictions) -> str:
    bad = num_not_finite(baseline)
    if not bad:
        return ""
    return f"The uncompressed model's output is not finite for {bad} of {len(baseline)} images, so nothing compares."
