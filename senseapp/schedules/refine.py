"""Where layers together lose more than predicted: measure them around the compressed model, and solve again.

Each layer's share of the damage of a compressed model, measured while all others stay compressed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from torch import nn

from senseapp.compressions.base import (
    ChannelCompressor,
    CompressionRequest,
    Compressor,
    Prepared,
    Target,
    WeightCompressor,
    build_compressor,
)
from senseapp.compressions.pruning.graph import restored
from senseapp.core.errors import MeasurementFailed, SenseError
from senseapp.engine.accumulation import BaselineOutputs
from senseapp.engine.context import MeasurementContext
from senseapp.metrics import METRICS, MetricChange, change_of
from senseapp.records.limits import Limits
from senseapp.records.measurement import LayerMeasurement, SensitivityResult, Status, change_in
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import ResourceBudget, Schedule
from senseapp.schedules.evaluator import ScheduleEvaluator
from senseapp.schedules.matching import Matching, Reference
from senseapp.schedules.methods import make_schedule
from senseapp.schedules.problem import manual_schedule
from senseapp.schedules.repair_choice import measured
from senseapp.schedules.trade_off import true_figures, truly_sized

_MOST_IMAGES = 256
_LEAST_IMAGES = 32
_TRIAL_IMAGES = 16
_MOST_SECONDS = 120.0  # of one round

Levels = Mapping[str, float]


class ConditionalSensitivity:
    """Measures layers one at a time while all others hold what a schedule gives them.

    Attributes:
        levels: what the schedule gives each layer, or first member of a group; without what cannot be carried out.
        couplings: which layers shrink together, where channels go.
    """

    def __init__(
        self, bench: ScheduleEvaluator, schedule: Schedule, dense: MeasurementContext, *, repair: bool
    ) -> None:
        self._metric, self._dense = schedule.metric, dense
        self._keys = [item.key for item in bench.result.shown if item.status is Status.MEASURED]
        compressor = _compressor(bench)
        self._targets = compressor.targets
        self._trial: _Trial = _Weights(cast(WeightCompressor, compressor))
        self.couplings: tuple[CoupledGroup, ...] = ()
        if isinstance(compressor, ChannelCompressor):
            self._trial, self.couplings = _Channels(compressor, dense.model), compressor.couplings()
        given = {entry.layer: entry.level for entry in schedule.entries if entry.compression != "none"}
        self.levels: Levels = {layer: level for layer, level in given.items() if self._trial.can(layer, level)}
        self._yardstick = BaselineOutputs(dense.baseline(), dense.images.labels, (schedule.metric,))
        self._reference = bench.reference() if repair else None
        self._batches = _first_batches(self._reference, len(dense.images)) if self._reference else ()
        self._scale = bench.scales_per_channel

    @classmethod
    def open(cls, bench: ScheduleEvaluator, schedule: Schedule, *, repair: bool) -> ConditionalSensitivity | None:
        """Return None where a round would take too long.

        Args:
            bench: the model and the images.
            schedule: of the run's own compression.
            repair: whether to measure after repair.
        """
        curves = bench.images.curves
        trial = replace(bench.dense, images=curves.subset(range(min(_TRIAL_IMAGES, len(curves)))))
        trial.baseline()  # times the passes
        passes = len(schedule.entries) * (len(bench.result.levels) + 1) * (2 if repair else 1)
        affordable = int(_MOST_SECONDS / max(1e-9, passes * trial.seconds_per_image))
        count = min(affordable, _MOST_IMAGES, len(curves))
        if count < min(_LEAST_IMAGES, len(curves)):
            return None
        return cls(bench, schedule, replace(bench.dense, images=curves.subset(range(count))), repair=repair)

    def shares(self, progress: Callable[[str], None]) -> Iterator[LayerMeasurement]:
        """Yield each layer's share of the damage at each level that the run measured."""
        for target in self._targets:
            levels = [level for layer, level in self._keys if layer == target.layer]
            if not levels:
                continue
            progress(f"Measuring {target.layer} around the compressed model")
            others = {layer: level for layer, level in self.levels.items() if layer != target.layer}
            without = self._change(others)
            for level in levels:
                yield self._share(target.layer, level, others, without)

    def _share(self, layer: str, level: float, others: Levels, without: MetricChange) -> LayerMeasurement:
        try:
            change = self._change({**others, layer: level})
        except MeasurementFailed as error:
            return LayerMeasurement(layer=layer, level=level, status=Status.FAILED, reason=str(error))
        share = change.delta - without.delta
        own = replace(change, delta=share if math.isfinite(share) else math.inf)
        return LayerMeasurement(layer=layer, level=level, status=Status.MEASURED, changes=(own,))

    def _change(self, levels: Levels) -> MetricChange:
        with ExitStack() as stack:
            compressed = stack.enter_context(self._trial.compressed(levels))
            if self._reference is not None:
                matching = Matching(
                    self._dense.model,
                    self._reference,
                    layers=compressed.layers,
                    kept=compressed.kept,
                    scale=self._scale,
                )
                stack.enter_context(matching.fitted(self._batches))
            output = self._dense.baseline()
        moments = self._yardstick.moments(output, 0, len(output))
        return change_of(self._metric, moments[self._metric])


def _first_batches(reference: Reference, count: int) -> tuple[int, ...]:
    """Return the positions of as many batches as hold ``count`` images, one at least."""
    sizes = [len(batch) for batch in reference.batches]
    return tuple(index for index in range(len(sizes)) if not index or sum(sizes[: index + 1]) <= count)


def _compressor(bench: ScheduleEvaluator) -> Compressor:
    spec = bench.result.spec.sensitivity
    measured = {member for item in bench.result.shown for member in (item.layer, *item.members)}
    request = CompressionRequest(
        model=bench.dense.model,
        layers=tuple(layer for layer in bench.profile.layers if layer.name in measured),
        calibration=tuple(bench.calibration()),
        seed=spec.seed,
    )
    return build_compressor(spec.compression, request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compressed:
    """Names of the layers that are compressed, and which channels stayed where some went."""

    layers: Collection[str]
    kept: Mapping[str, Sequence[int]] = field(default_factory=dict)


class _Trial(Protocol):
    """Compresses several layers of the private model for a while."""

    def can(self, layer: str, level: float) -> bool:
        """Return whether ``layer`` takes ``level``."""
        ...

    def compressed(self, levels: Levels) -> AbstractContextManager[_Compressed]:
        """Compress the layers inside.

        Raises:
            MeasurementFailed: a layer does not take its level.
        """
        ...


class _Weights:
    """Keeps the last compressed weight of each layer: most stay the same from trial to trial."""

    def __init__(self, compressor: WeightCompressor) -> None:
        self._compressor = compressor
        self._targets: dict[str, Target] = {target.layer: target for target in compressor.targets}
        self._kept: dict[str, tuple[float, Prepared]] = {}

    def can(self, layer: str, level: float) -> bool:
        try:
            return layer in self._targets and bool(self._prepared(layer, level))
        except MeasurementFailed:
            return False

    @contextmanager
    def compressed(self, levels: Levels) -> Iterator[_Compressed]:
        with ExitStack() as stack:
            for prepared in [self._prepared(layer, level) for layer, level in levels.items()]:
                stack.enter_context(prepared.active())
            yield _Compressed(layers={member for layer in levels for member in self._targets[layer].members})

    def _prepared(self, layer: str, level: float) -> Prepared:
        if layer not in self._kept or self._kept[layer][0] != level:
            self._kept[layer] = level, self._compressor.prepare(self._targets[layer], level)
        return self._kept[layer][1]


class _Channels:
    """Takes channels away and puts them back; what is coupled is found once."""

    def __init__(self, compressor: ChannelCompressor, model: nn.Module) -> None:
        self._compressor, self._model = compressor, model

    def can(self, layer: str, level: float) -> bool:
        return any(target.layer == layer for target in self._compressor.targets)

    @contextmanager
    def compressed(self, levels: Levels) -> Iterator[_Compressed]:
        kept = self._compressor.kept_channels(levels)
        with restored(self._model.modules()):
            self._compressor.prune(levels)
            yield _Compressed(layers=kept.keys(), kept=kept)


_NEGLIGIBLE = 0.002  # nats, or 0.2 points: another schedule could win nothing that matters


def disagrees(predicted: float, measured: MetricChange) -> bool:
    """Return whether the predicted damage lies outside of the interval of the measured one."""
    return not measured.ci_low <= predicted <= measured.ci_high


def refine(
    bench: ScheduleEvaluator, schedule: Schedule, *, rounds: int, repair: bool, progress: Callable[[str], None]
) -> tuple[Schedule, int, tuple[str, ...]]:
    """Return the best schedule found in at most ``rounds`` rounds, how many were made, and sentences on them.

    A round measures, for each layer and level, the damage of the whole compressed model with only that layer
    changed, less its damage with that layer untouched: the layer's own share around this schedule. The schedule
    solved from these shares takes over if it does less damage on the curves' images, repaired or not, whichever is
    better, where repair is asked for; shares are measured with repair where the schedule is better with it. There is
    no round where the damage is no more than predicted, or too little to be worth one. Only optimal schedules are
    solved again.
    """
    kinds = {entry.compression for entry in schedule.entries} - {"none"}
    solvable = schedule.method == "optimal" and schedule.budget is not None
    if rounds < 2 or not solvable or kinds != {bench.result.spec.sensitivity.compression.kind}:
        return schedule, 1, ()
    best, used = schedule, 1
    first, repairs = _damage(bench, schedule, repair)
    damage = first
    while used < rounds and damage is not None and _worth_a_round(best, damage):
        progress(f"Round {used + 1} of at most {rounds}: measuring the layers around the compressed model")
        again = _solved_around(bench, best, damage, repairs, progress)
        if again is None:
            break
        used += 1
        found, does = _damage(bench, again, repair)
        if found is None or not found.delta < damage.delta:
            break
        best, damage, repairs = again, found, does
    if used == 1 or first is None or damage is None:
        return schedule, 1, ()
    return best, used, (_sentence(schedule, best, first, damage, used),)


def _worth_a_round(schedule: Schedule, damage: MetricChange) -> bool:
    return schedule.predicted_damage < damage.ci_low and damage.delta > _NEGLIGIBLE


def _sentence(asked: Schedule, best: Schedule, first: MetricChange, last: MetricChange, used: int) -> str:
    predicted, measured, found = (
        METRICS[asked.metric].change_text(loss) for loss in (asked.predicted_damage, first.delta, last.delta)
    )
    start = (
        f"The predicted loss, {predicted}, and the measured one, {measured}, disagreed, so the layers were measured "
        f"again around the compressed model ({used} rounds); "
    )
    if best is asked:
        return start + "no better schedule was found."
    return start + f"the schedule solved from that loses {found} on the same images."


def _damage(bench: ScheduleEvaluator, schedule: Schedule, repair: bool) -> tuple[MetricChange | None, bool]:
    """Return the damage on the curves' images, of the better of repaired and not, and whether that is the repaired."""
    curves = bench.images.curves
    found = measured(bench, bench.apply(schedule), schedule.metric, repair=repair, images=curves)
    return change_in(found.best, schedule.metric), found.delivered == "repaired"


def _solved_around(
    bench: ScheduleEvaluator, schedule: Schedule, damage: MetricChange, repair: bool, progress: Callable[[str], None]
) -> Schedule | None:
    around = ConditionalSensitivity.open(bench, schedule, repair=repair)
    if around is None:
        return None
    shares = list(around.shares(progress))
    try:
        # Shares measured around a schedule need not add up to its damage; scaled, they do.
        total = manual_schedule(_with_shares(bench.result, shares), around.levels, metric=schedule.metric)
        factor = damage.delta / total.predicted_damage if total.predicted_damage > 0 else 1.0
        renewed = _with_shares(bench.result, [_scaled(share, factor) for share in shares])
        return _solved(renewed, schedule, around)
    except SenseError:  # what was measured around a broken model may allow no schedule: the one asked for stays
        return None


def _solved(result: SensitivityResult, schedule: Schedule, around: ConditionalSensitivity) -> Schedule:
    """Return the optimal schedule for ``result`` that costs what ``schedule`` does; truly so, where channels go."""
    asked, locked = schedule.budget, {entry.layer: entry.level for entry in schedule.entries if entry.locked}
    assert asked is not None

    def make(target: float) -> Schedule:
        budget = replace(asked, target=target)
        return make_schedule(result, budget=budget, metric=schedule.metric, limits=Limits(fixed=locked))

    if not around.couplings:
        return make(asked.target)
    true = true_figures(schedule, result.profile, around.couplings)[asked.kind]
    sized = truly_sized(make, result.profile, around.couplings, ResourceBudget(kind=asked.kind, target=true))
    return replace(sized, budget=asked)


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
