"""Measure each layer's share of a compressed model's damage, all others compressed, and solve the schedule again."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import cast

from torch import nn

from senseapp.compressions.base import (
    ChannelCompressor,
    CompressionRequest,
    Compressor,
    Prepared,
    WeightCompressor,
)
from senseapp.compressions.pruning.graph import restored
from senseapp.core.errors import MeasurementFailed, SenseError
from senseapp.engine.accumulation import BaselineOutputs
from senseapp.engine.adapted import compressor_for
from senseapp.engine.context import MeasurementContext
from senseapp.metrics import METRICS, MetricChange, change_of
from senseapp.records.measurement import LayerMeasurement, SensitivityResult, Status, change_in
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import Adapting, Limits, ResourceBudget, Schedule
from senseapp.schedules.evaluator import ScheduleEvaluator
from senseapp.schedules.methods import make_schedule
from senseapp.schedules.problem import manual_schedule
from senseapp.schedules.repair import Matching
from senseapp.schedules.repair_choice import measured
from senseapp.schedules.strongest import couplings_of
from senseapp.schedules.trade_off import true_figures, truly_sized

_MOST_IMAGES = 256
_LEAST_IMAGES = 32
_TRIAL_IMAGES = 16
_MOST_SECONDS = 120.0  # of one round
_NEGLIGIBLE = 0.002  # nats, or 0.2 points: another schedule could win nothing that matters

Levels = Mapping[str, float]
_Touched = tuple[Collection[str], Mapping[str, Sequence[int]]]
"""Names of the layers that are compressed, and which channels stayed where some went."""


class ConditionalSensitivity:
    """Measures layers one at a time while all others hold what a schedule gives them.

    Attributes:
        levels: what the schedule gives each layer, or first member of a group; without what cannot be carried out.
        couplings: which layers shrink together, where channels go.
    """

    def __init__(
        self, evaluator: ScheduleEvaluator, schedule: Schedule, dense: MeasurementContext, *, repair: bool
    ) -> None:
        self._evaluator, self._metric, self._dense = evaluator, schedule.metric, dense
        compressor = _compressor(evaluator)
        self._targets = compressor.targets
        self._trial: _Weights | _Channels
        self.couplings: tuple[CoupledGroup, ...] = ()
        if isinstance(compressor, ChannelCompressor):
            self._trial, self.couplings = _Channels(compressor, dense.model), compressor.couplings()
        else:
            self._trial = _Weights(cast(WeightCompressor, compressor))
        given = {entry.layer: entry.level for entry in schedule.entries if entry.compression != "none"}
        self.levels: Levels = {layer: level for layer, level in given.items() if self._trial.can(layer, level)}
        self._baseline = BaselineOutputs(dense.baseline(), dense.images.labels, (schedule.metric,))
        self._reference = evaluator.reference if repair else None
        sizes = [len(batch) for batch in self._reference.batches] if self._reference else []
        self._batches = [
            index for index in range(len(sizes)) if not index or sum(sizes[: index + 1]) <= len(dense.images)
        ]  # as many as hold these images, one at least

    @classmethod
    def open(cls, evaluator: ScheduleEvaluator, schedule: Schedule, *, repair: bool) -> ConditionalSensitivity | None:
        """Return None where a round would take too long; ``repair`` measures after repair."""
        curves = evaluator.images.curves
        trial = replace(evaluator.dense, images=curves.subset(range(min(_TRIAL_IMAGES, len(curves)))))
        trial.baseline()  # times the passes
        passes = len(schedule.entries) * (len(evaluator.result.levels) + 1) * (2 if repair else 1)
        affordable = int(_MOST_SECONDS / max(1e-9, passes * trial.seconds_per_image))
        count = min(affordable, _MOST_IMAGES, len(curves))
        if count < min(_LEAST_IMAGES, len(curves)):
            return None
        return cls(evaluator, schedule, replace(evaluator.dense, images=curves.subset(range(count))), repair=repair)

    def shares(self) -> Iterator[LayerMeasurement]:
        """Yield each layer's share of the damage at each level that the run measured."""
        keys = [item.key for item in self._evaluator.result.shown if item.status is Status.MEASURED]
        for target in self._targets:
            levels = [level for layer, level in keys if layer == target.layer]
            if not levels:
                continue
            self._evaluator.progress(f"Measuring {target.layer} around the compressed model")
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
            layers, kept = stack.enter_context(self._trial.compressed(levels))
            if self._reference is not None:
                scale = self._evaluator.scales_per_channel
                matching = Matching(self._dense.model, self._reference, layers=layers, kept=kept, scale=scale)
                stack.enter_context(matching.fitted(self._batches))
            output = self._dense.baseline()
        moments = self._baseline.moments(output, 0, len(output))
        return change_of(self._metric, moments[self._metric])


def _compressor(evaluator: ScheduleEvaluator) -> Compressor:
    spec = evaluator.result.spec.sensitivity
    measured = {member for item in evaluator.result.shown for member in (item.layer, *item.members)}
    request = CompressionRequest(
        model=evaluator.dense.model,
        layers=tuple(layer for layer in evaluator.profile.layers if layer.name in measured),
        calibration=tuple(evaluator.calibration()),
        seed=spec.seed,
    )
    return compressor_for(spec, request)


class _Weights:
    """Compresses weights of several layers for a while, and keeps the last of each: most stay the same."""

    def __init__(self, compressor: WeightCompressor) -> None:
        self._compressor = compressor
        self._targets = {target.layer: target for target in compressor.targets}
        self._kept: dict[str, tuple[float, Prepared]] = {}

    def can(self, layer: str, level: float) -> bool:
        try:
            return layer in self._targets and bool(self._prepared(layer, level))
        except MeasurementFailed:
            return False

    @contextmanager
    def compressed(self, levels: Levels) -> Iterator[_Touched]:
        with ExitStack() as stack:
            for prepared in [self._prepared(layer, level) for layer, level in levels.items()]:
                stack.enter_context(prepared.active())
            yield {member for layer in levels for member in self._targets[layer].members}, {}

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
    def compressed(self, levels: Levels) -> Iterator[_Touched]:
        kept = self._compressor.kept_channels(levels)
        with restored(self._model.modules()):
            self._compressor.prune(levels)
            yield kept.keys(), kept


def refine(
    evaluator: ScheduleEvaluator, schedule: Schedule, *, rounds: int, repair: bool, adapting: Adapting = "off"
) -> tuple[Schedule, int, tuple[str, ...]]:
    """Return the best schedule found in at most ``rounds`` rounds, how many were made, and sentences on them.

    A round measures, for each layer and level, the damage of the whole compressed model with only that layer changed,
    less its damage with that layer untouched: the layer's own share around this schedule. The schedule solved from
    these shares takes over if it does less damage on the curves' images, in the better form of repaired and not where
    repair is asked for, and with adapted weights unless ``adapting`` is off; shares are measured with repair where the
    schedule is better with it. There is no round where the damage is no more than that of the layers alone, or too
    little to be worth one. Only optimal schedules are solved again.
    """
    kinds = {entry.compression for entry in schedule.entries} - {"none"}
    solvable = schedule.method == "optimal" and schedule.budget is not None
    if rounds < 2 or not solvable or kinds != {evaluator.result.compression.kind}:
        return schedule, 1, ()
    best, used = schedule, 1
    notes: tuple[str, ...] = ()
    first, repairs = _damage(evaluator, schedule, repair, adapting)
    damage = first
    if damage is not None and damage.delta > _NEGLIGIBLE and (sums := _solved_by_sums(evaluator, schedule)) is not None:
        found, does = _damage(evaluator, sums, repair, adapting)
        if found is not None and found.delta < damage.delta:
            notes = (_sums_sentence(schedule, damage, found),)
            best, damage, first, repairs = sums, found, found, does
    asked = best
    while used < rounds and damage is not None:
        if not (_alone(best) < damage.ci_low and damage.delta > _NEGLIGIBLE):
            break
        evaluator.progress(f"Round {used + 1} of at most {rounds}: measuring the layers around the compressed model")
        again = _solved_again(evaluator, best, damage, repairs)
        if again is None:
            break
        used += 1
        found, does = _damage(evaluator, again, repair, adapting)
        if found is None or not found.delta < damage.delta:
            break
        best, damage, repairs = again, found, does
    if used == 1 or first is None or damage is None:
        return best, 1, notes
    return best, used, (*notes, _sentence(asked, best, first, damage, used))


def _alone(schedule: Schedule) -> float:
    return sum(entry.predicted_damage for entry in schedule.entries)


def _solved_by_sums(evaluator: ScheduleEvaluator, schedule: Schedule) -> Schedule | None:
    """Return the schedule for damages that add up; None where it is ``schedule``, or there is none."""
    result = evaluator.result
    if result.recorded is None:
        return None
    try:
        sums = _solved(replace(result, recorded=None), schedule, couplings_of(evaluator.dense.model, result))
        if sums.entries == schedule.entries:
            return None
        levels = {entry.layer: entry.level for entry in sums.entries}
        predicted = manual_schedule(result, levels, metric=schedule.metric).predicted_damage
    except SenseError:  # a schedule of true size need not be found from both
        return None
    return replace(sums, predicted_damage=predicted)


def _sums_sentence(schedule: Schedule, together: MetricChange, sums: MetricChange) -> str:
    text = METRICS[schedule.metric].change_text
    return (
        f"On the images of the curves, the schedule for what layers are predicted to do together loses "
        f"{text(together.delta)}, that for the sum of what they lose alone {text(sums.delta)}: the latter was taken."
    )


def _sentence(asked: Schedule, best: Schedule, first: MetricChange, last: MetricChange, used: int) -> str:
    alone, measured, found = (
        METRICS[asked.metric].change_text(loss) for loss in (_alone(asked), first.delta, last.delta)
    )
    start = (
        f"The layers lose {alone} alone, in sum, and {measured} together, so they were measured again around the "
        f"compressed model ({used} rounds); "
    )
    if best is asked:
        return start + "no better schedule was found."
    return start + f"the schedule solved from that loses {found} on the same images."


def _damage(
    evaluator: ScheduleEvaluator, schedule: Schedule, repair: bool, adapting: Adapting
) -> tuple[MetricChange | None, bool]:
    """Return the damage on the curves' images, of the better of repaired and not, and whether that is the repaired."""
    curves, applied = evaluator.images.curves, evaluator.apply(schedule)
    found = measured(evaluator, applied, schedule.metric, repair=repair, images=curves, adapting=adapting)
    return change_in(found.best, schedule.metric), found.delivered != "compressed"


def _solved_again(
    evaluator: ScheduleEvaluator, schedule: Schedule, damage: MetricChange, repair: bool
) -> Schedule | None:
    conditional = ConditionalSensitivity.open(evaluator, schedule, repair=repair)
    if conditional is None:
        return None
    shares = list(conditional.shares())
    try:
        # Shares measured around a schedule need not add up to its damage; scaled, they do.
        total = manual_schedule(_with_shares(evaluator.result, shares), conditional.levels, metric=schedule.metric)
        factor = damage.delta / total.predicted_damage if total.predicted_damage > 0 else 1.0
        return _solved(_with_shares(evaluator.result, shares, factor), schedule, conditional.couplings)
    except SenseError:  # what was measured around a broken model may allow no schedule: the one asked for stays
        return None


def _solved(result: SensitivityResult, schedule: Schedule, couplings: Sequence[CoupledGroup]) -> Schedule:
    """Return the optimal schedule for ``result`` that costs what ``schedule`` does; truly so, where channels go."""
    asked, locked = schedule.budget, {entry.layer: entry.level for entry in schedule.entries if entry.locked}
    assert asked is not None

    def make(target: float) -> Schedule:
        budget = replace(asked, target=target)
        return make_schedule(result, budget=budget, metric=schedule.metric, limits=Limits(fixed=locked))

    if not couplings:
        return make(asked.target)
    true = true_figures(schedule, result.profile, couplings)[asked.kind]
    sized = truly_sized(make, result.profile, couplings, ResourceBudget(kind=asked.kind, target=true))
    return replace(sized, budget=asked)


def _with_shares(
    result: SensitivityResult, shares: Sequence[LayerMeasurement], factor: float = 1.0
) -> SensitivityResult:
    """Return ``result`` with the damage of each layer replaced; its savings stay as they were measured."""
    known = {item.key: item for item in result.shown}
    for share in shares:
        changes = tuple(replace(change, delta=factor * change.delta) for change in share.changes)
        known[share.key] = replace(known[share.key], changes=changes, status=share.status, estimated=False)
    measurements = tuple(known[item.key] for item in result.shown)
    return replace(
        result, measurements=measurements, estimates=(), recorded=None
    )  # shares hold what layers do together
