"""Where layers together lose more than predicted: measure them around the compressed model, and solve again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import cast

from senseapp.data import ImageSet
from senseapp.errors import MeasurementFailed, SenseError
from senseapp.evaluate import change_of
from senseapp.results import LayerMeasurement, MetricChange, Schedule, SensitivityResult, Status
from senseapp.schedule import Limits, make_schedule, manual_schedule
from senseapp.sensitivity.tally import Yardstick
from senseapp.transforms import CompressionRequest, Prepared, Target, WeightCompressor, build_compressor
from senseapp.validation.bench import TestBench

__all__ = ["disagrees", "refine"]

_MOST_IMAGES = 256
_LEAST_IMAGES = 32
_TRIAL_IMAGES = 16
_MOST_SECONDS = 120.0  # of one round


def disagrees(predicted: float, measured: MetricChange) -> bool:
    """Return whether the predicted damage lies outside of the interval of the measured one."""
    return not measured.ci_low <= predicted <= measured.ci_high


def refine(
    bench: TestBench, schedule: Schedule, *, rounds: int, repair: bool, progress: Callable[[str], None]
) -> tuple[Schedule, int, tuple[str, ...]]:
    """Return the best schedule found in at most ``rounds`` rounds, how many were made, and sentences on them.

    A round measures, for each layer and level, the damage of the whole compressed model with only that layer
    changed, less its damage with that layer untouched: the layer's own share around this schedule. The schedule
    solved from these shares takes over if it does less damage on the curves' images, after repair where that is
    asked for. There is no round where the damage is no more than predicted. Only optimal schedules of weights are
    solved again: channels that are gone cannot be put back one layer at a time.
    """
    kinds = {entry.compression for entry in schedule.entries} - {"none"}
    solvable = schedule.method == "optimal" and schedule.budget is not None and not kinds & {"pruning"}
    if rounds < 2 or not solvable or kinds != {bench.result.spec.sensitivity.compression.kind}:
        return schedule, 1, ()
    best, used = schedule, 1
    first = damage = _damage(bench, schedule, repair)
    while used < rounds and damage is not None and best.predicted_damage < damage.ci_low:
        progress(f"Round {used + 1} of at most {rounds}: measuring the layers around the compressed model")
        again = _solved_around(bench, best, damage, progress)
        if again is None:
            break
        used += 1
        found = _damage(bench, again, repair)
        if found is None or not found.delta < damage.delta:
            break
        best, damage = again, found
    if used == 1 or first is None or damage is None:
        return schedule, 1, ()
    return best, used, (_sentence(schedule, best, first, damage, used),)


def _sentence(asked: Schedule, best: Schedule, first: MetricChange, last: MetricChange, used: int) -> str:
    name = asked.metric
    start = (
        f"Predicted {name} {asked.predicted_damage:.4g} and measured {first.delta:.4g} disagreed, so the layers were "
        f"measured again around the compressed model ({used} rounds); "
    )
    if best is asked:
        return start + "no better schedule was found."
    return start + f"the schedule solved from that has {name} {last.delta:.4g} on the same images."


def _damage(bench: TestBench, schedule: Schedule, repair: bool) -> MetricChange | None:
    applied = bench.apply(schedule)
    if repair:
        bench.repair(applied)
    changes = bench.measure(applied, bench.images.curves)
    return next((change for change in changes if change.metric == schedule.metric), None)


def _solved_around(
    bench: TestBench, schedule: Schedule, damage: MetricChange, progress: Callable[[str], None]
) -> Schedule | None:
    around = _Around.of(bench, schedule)
    if around is None or schedule.budget is None:
        return None
    shares = list(around.shares(progress))
    locked = {entry.layer: entry.level for entry in schedule.entries if entry.locked}
    try:
        # Shares measured around a schedule need not add up to its damage; scaled, they do.
        total = manual_schedule(_with_shares(bench.result, shares), around.levels, metric=schedule.metric)
        factor = damage.delta / total.predicted_damage if total.predicted_damage > 0 else 1.0
        scaled = [_scaled(share, factor) for share in shares]
        return make_schedule(
            _with_shares(bench.result, scaled),
            budget=schedule.budget,
            metric=schedule.metric,
            limits=Limits(fixed=locked),
        )
    except SenseError:  # what was measured around a broken model may allow no schedule: the one asked for stays
        return None


def _scaled(share: LayerMeasurement, factor: float) -> LayerMeasurement:
    return replace(share, changes=tuple(replace(change, delta=factor * change.delta) for change in share.changes))


def _with_shares(result: SensitivityResult, shares: list[LayerMeasurement]) -> SensitivityResult:
    """Return ``result`` with the damage of each layer replaced; its savings stay as they were measured."""
    known = {item.key: item for item in result.shown}
    renewed = {
        share.key: replace(known[share.key], changes=share.changes, status=share.status, estimated=False)
        for share in shares
    }
    measurements = tuple(renewed.get(item.key, item) for item in result.shown)
    return replace(result, measurements=measurements, estimates=())


@dataclass(slots=True)
class _Around:
    """Measures layers one at a time while all others hold what the schedule gives them."""

    bench: TestBench
    schedule: Schedule
    images: ImageSet
    yardstick: Yardstick
    compressor: WeightCompressor
    levels: dict[str, float]
    prepared: dict[str, Prepared]

    @classmethod
    def of(cls, bench: TestBench, schedule: Schedule) -> _Around | None:
        """Return None where a round would take too long."""
        curves, spec = bench.images.curves, bench.result.spec.sensitivity
        passes = len(schedule.entries) * (len(spec.levels) + 1)
        trial = replace(bench.dense, images=curves.subset(range(min(_TRIAL_IMAGES, len(curves)))))
        trial.baseline()  # times the passes
        count = min(int(_MOST_SECONDS / max(1e-9, passes * trial.seconds_per_image)), _MOST_IMAGES, len(curves))
        if count < min(_LEAST_IMAGES, len(curves)):
            return None
        images = curves.subset(range(count))
        dense = replace(bench.dense, images=images)
        measured = {item.layer for item in bench.result.shown}
        request = CompressionRequest(
            model=dense.model,
            layers=tuple(layer for layer in bench.profile.layers if layer.name in measured),
            calibration=tuple(bench.calibration()),
            seed=spec.seed,
        )
        compressor = cast(WeightCompressor, build_compressor(spec.compression, request))
        levels = {entry.layer: entry.level for entry in schedule.entries if entry.compression != "none"}
        yardstick = Yardstick(dense.baseline(), images.labels, (schedule.metric,))
        prepared = {}
        for target in compressor.targets:
            with suppress(MeasurementFailed):  # the schedule left it as it is, too
                if target.layer in levels:
                    prepared[target.layer] = compressor.prepare(target, levels[target.layer])
        return cls(bench, schedule, images, yardstick, compressor, levels, prepared)

    def shares(self, progress: Callable[[str], None]) -> Iterator[LayerMeasurement]:
        """Yield each layer's share of the damage at each level of the run."""
        for target in self.compressor.targets:
            progress(f"Measuring {target.layer} around the compressed model")
            with self._others_compressed(target):
                without = self._change()
                for level in self.bench.result.levels:
                    yield self._share(target, level, without)

    @contextmanager
    def _others_compressed(self, target: Target) -> Iterator[None]:
        with ExitStack() as stack:
            for layer, prepared in self.prepared.items():
                if layer != target.layer:
                    stack.enter_context(prepared.active())
            yield

    def _share(self, target: Target, level: float, without: MetricChange) -> LayerMeasurement:
        try:
            prepared = self.compressor.prepare(target, level)
        except MeasurementFailed as error:
            return LayerMeasurement(layer=target.layer, level=level, status=Status.FAILED, reason=str(error))
        with prepared.active():
            change = self._change()
        share = change.delta - without.delta
        own = replace(change, delta=share if math.isfinite(share) else math.inf)
        return LayerMeasurement(layer=target.layer, level=level, status=Status.MEASURED, changes=(own,))

    def _change(self) -> MetricChange:
        logits = replace(self.bench.dense, images=self.images).baseline()
        moments = self.yardstick.moments(logits, 0, len(self.images))
        return change_of(self.schedule.metric, moments[self.schedule.metric])
