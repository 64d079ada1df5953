"""The exact measurement: every layer (or coupled group) at every level, by prefix replay."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil
from torch import Tensor, nn

from senseapp.data import ImageSet, draw
from senseapp.errors import InvalidSpec, MeasurementFailed
from senseapp.evaluate import metric_names, undecided
from senseapp.layers import select_layers
from senseapp.results import LayerMeasurement, Status
from senseapp.sensitivity.layout import Layout
from senseapp.sensitivity.plan import PlannedTarget, chunk_spans, plan_targets, telling_positions
from senseapp.sensitivity.precision import choose_precision
from senseapp.sensitivity.prefix import Prefix, prefix_bytes_per_image
from senseapp.sensitivity.replay import Replay, ReplayMismatch
from senseapp.sensitivity.tally import Tally, Yardstick
from senseapp.sensitivity.workbench import Workbench
from senseapp.spec import LABEL_FREE_METRICS, SensitivitySpec
from senseapp.transforms import CompressionRequest, Compressor, build_compressor

__all__ = ["Sweep", "measure"]

_CALIBRATION_IMAGES = 64
_SETTLE_FROM = 64
_MOST_IN_ONE_PASS = 256
_MOST_PREFIX_BYTES = 2 * 2**30


def measure(
    model: nn.Module,
    images: ImageSet,
    spec: SensitivitySpec,
    *,
    done: Iterable[LayerMeasurement] = (),
    calibration: ImageSet | None = None,
) -> Iterator[LayerMeasurement]:
    """Measure what compressing each layer of ``model`` does to its metrics.

    Progress is the count of measurements yielded, to cancel is to stop iterating, to resume is to pass what was
    yielded before as ``done``. The caller's model is copied, never touched.

    Args:
        model: takes (N, C, H, W), returns class scores (N, classes).
        images: what to measure on.
        spec: what to measure.
        done: measurements of the same run that exist already; they are not made again.
        calibration: images for data-driven criteria and activation ranges; None takes the first ones measured.

    Yields:
        One measurement per target and level, not applicable ones first. Where the images do not fit the memory
        at once, a target is yielded again after each part, over all images so far; the last one counts.

    Raises:
        InvalidInput: the settings do not fit the model or the images.
    """
    yield from Sweep.open(model, images, spec, calibration=calibration).measure(done)


@dataclass(slots=True)
class Sweep:
    """One compression of one model over one image set, prepared: see :func:`measure`.

    Attributes:
        bench: the private model and the images.
        spec: the settings.
        compressor: the compression, bound to the private model.
        planned: its targets by position.
        yardstick: the uncompressed model's output.
        metric: the one that ranks layers.
        notes: sentences on anything approximated, skipped or failed.
    """

    bench: Workbench
    spec: SensitivitySpec
    compressor: Compressor
    planned: list[PlannedTarget]
    yardstick: Yardstick
    metric: str
    notes: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        model: nn.Module,
        images: ImageSet,
        spec: SensitivitySpec,
        *,
        calibration: ImageSet | None = None,
        layout: Layout | None = None,
        own: bool = False,
    ) -> Sweep:
        """Check the settings, choose how passes run, and measure the uncompressed model.

        Args:
            model: the network; see :func:`measure`.
            images: what to measure on.
            spec: what to measure.
            calibration: see :func:`measure`.
            layout: of the run that is resumed; None chooses one by a timed trial.
            own: whether ``model`` is given away, so that no copy is needed.

        Raises:
            InvalidInput: the settings do not fit the model or the images.
        """
        images = draw(images, spec.num_samples, spec.seed)
        bench = Workbench.prepare(model, images, device=spec.device, own=own)
        layers = select_layers(bench.profile, spec.layers, spec.layer_types)
        metrics = metric_names(has_labels=images.labels is not None, num_classes=bench.profile.num_classes)
        metric = _ranking_metric(spec, metrics)
        notes: list[str] = list(images.notes)
        bench.settle_layout(
            most=min(spec.batch_size or _MOST_IN_ONE_PASS, len(images)),
            forwards=max(1.0, 0.5 * len(layers) * len(spec.levels)),
            precision="bf16" if spec.precision == "bf16" else "fp32",
            given=layout,
        )
        source = images if calibration is None else calibration
        request = CompressionRequest(
            model=bench.model,
            layers=layers,
            calibration=tuple(bench.arranged(source, 0, min(_CALIBRATION_IMAGES, len(source)))),
            seed=spec.seed,
        )
        compressor = build_compressor(spec.compression, request)
        planned = plan_targets(compressor.targets, bench.trace)
        bench.check_replay(telling_positions(planned))
        if spec.precision == "auto" and layout is None:
            notes.append(choose_precision(bench, compressor, planned, spec.levels))
        if bench.unsafe:
            notes.append(_plain_note(bench.unsafe))
        yardstick = Yardstick(bench.baseline(), images.labels, metrics)
        yardstick.values()  # refuses labels that are not among the model's classes
        return cls(bench, spec, compressor, planned, yardstick, metric, notes)

    @property
    def total(self) -> int:
        """Return how many measurements :meth:`measure` yields at most."""
        skipped = len(self.compressor.not_applicable)
        return (skipped + len(self.planned) * len(self.chunks())) * len(self.spec.levels)

    def chunks(self) -> list[tuple[int, int]]:
        """Return the spans of images that are measured together."""
        positions = [item.position for item in self.planned]
        input_bytes = 4 * self.bench.images.batch(0, 1)[0].numel()
        return chunk_spans(
            len(self.bench.images),
            bytes_per_image=prefix_bytes_per_image(self.bench.trace, positions) + input_bytes,
            budget_bytes=min(_MOST_PREFIX_BYTES, psutil.virtual_memory().total // 8),
            micro_batch=self.bench.layout.micro_batch,
            settle_from=_SETTLE_FROM if self.spec.until_settled else 0,
        )

    def predicted_seconds(self) -> float:
        """Return how long all measurements take, from the timed baseline and each target's share of a pass."""
        share = 1.0 if self.bench.unsafe else None
        passes = sum(len(self.spec.levels) * (share or item.suffix) for item in self.planned) + 1
        return passes * self.bench.seconds_per_image * len(self.bench.images)

    def measure(self, done: Iterable[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        """Yield the measurements that ``done`` does not hold yet; see :func:`measure`."""
        chunks = self.chunks()
        tally = Tally(done, stops=[stop for _, stop in chunks])
        yield from self._not_applicable(tally)
        broken = _broken_rows(self.yardstick.baseline)
        active = {(item.target.layer, level) for item in self.planned for level in self.spec.levels}
        for start, stop in chunks:
            prefixes = self.bench.prefixes(start, stop)
            for item in self.planned:
                pending = [
                    level
                    for level in self.spec.levels
                    if (item.target.layer, level) in active and tally.images_done((item.target.layer, level)) < stop
                ]
                if broken:
                    yield from (tally.fail(item, level, broken, 0.0) for level in pending)
                elif pending:
                    yield from self._measure_target(item, pending, prefixes, (start, stop), tally)
            if self.spec.until_settled:
                active = self._unsettled(tally, active, stop)

    def _not_applicable(self, tally: Tally) -> Iterator[LayerMeasurement]:
        for layer, reason in self.compressor.not_applicable.items():
            for level in self.spec.levels:
                if not tally.images_done((layer, level)):
                    yield LayerMeasurement(
                        layer=layer, level=level, status=Status.NOT_APPLICABLE, members=(layer,), reason=reason
                    )

    def _measure_target(
        self,
        item: PlannedTarget,
        levels: Sequence[float],
        prefixes: Sequence[Prefix],
        span: tuple[int, int],
        tally: Tally,
    ) -> Iterator[LayerMeasurement]:
        replay = Replay(self.bench.model, self.bench.trace)
        for level in levels:
            started = time.perf_counter()
            try:
                self._advance(replay, prefixes, item.position)
                with self.compressor.compress(item.target, level) as applied:
                    logits = self._pass(replay, prefixes, span)
                moments = self.yardstick.moments(logits, *span)
            except Exception as error:  # one measurement fails, whatever the model raises; the run goes on
                yield tally.fail(item, level, _reason(error), time.perf_counter() - started)
            else:
                yield tally.add(item, level, moments, applied, time.perf_counter() - started)

    def _advance(self, replay: Replay, prefixes: Sequence[Prefix], position: int) -> None:
        if self.bench.unsafe:
            return
        try:
            self.bench.advance(replay, prefixes, position)
        except ReplayMismatch as mismatch:  # these images take another way through the model than the watched one
            self.bench.unsafe = str(mismatch)
            self.notes.append(_plain_note(self.bench.unsafe))

    def _pass(self, replay: Replay, prefixes: Sequence[Prefix], span: tuple[int, int]) -> Tensor:
        if self.bench.unsafe:
            return self.bench.logits(*span)
        try:
            logits = self.bench.resume(replay, prefixes)
        except ReplayMismatch:  # the compressed model calls its modules in another order
            return self.bench.logits(*span)
        # Kept outputs that nothing should read any more hold NaN. Code that decides by its data may have read one.
        return logits if logits.isfinite().all() else self.bench.logits(*span)

    def _unsettled(self, tally: Tally, active: set[tuple[str, float]], stop: int) -> set[tuple[str, float]]:
        """Return those of ``active`` that cannot yet be told from a neighbour in the ranking."""
        left: set[tuple[str, float]] = set()
        for level in self.spec.levels:
            measured = [
                (key, change)
                for item in self.planned
                if (change := tally.change(key := (item.target.layer, level), self.metric, stop=stop)) is not None
            ]
            close = undecided([change.ci_low for _, change in measured], [change.ci_high for _, change in measured])
            left |= {measured[index][0] for index in close}
        return left & active


def _ranking_metric(spec: SensitivitySpec, metrics: Sequence[str]) -> str:
    if spec.metric is None:
        return "top1" if "top1" in metrics else "kl"
    if spec.metric not in metrics:
        free = ", ".join(LABEL_FREE_METRICS)
        raise InvalidSpec(
            f"The metric {spec.metric} cannot be measured here: "
            + ("it needs more than five classes." if "top1" in metrics else "it needs labels, and there are none.")
            + f" Choose one of {', '.join(metrics) if 'top1' in metrics else free}."
        )
    return spec.metric


def _broken_rows(baseline: Tensor) -> str:
    bad = int((~baseline.isfinite()).any(dim=1).sum())
    if not bad:
        return ""
    return f"The uncompressed model's output is not finite for {bad} of {len(baseline)} images, so nothing compares."


def _plain_note(reason: str) -> str:
    return f"Measured by whole passes, which takes longer: {reason}."


def _reason(error: Exception) -> str:
    if isinstance(error, MeasurementFailed):
        return str(error)
    first = str(error).strip().split("\n")[0][:300]
    if isinstance(error, MemoryError) or "out of memory" in first.lower() or "can't allocate memory" in first.lower():
        return f"There was not enough memory: {first}. Choose a smaller batch size."
    return f"The compressed model failed: {type(error).__name__}: {first}"
