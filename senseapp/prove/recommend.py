"""Searches for the strongest schedule whose measured loss is tolerable: by bisection, or over the whole range.

A recommendation measures whole schedules on the curves' images, halves the range a few times where the loss passes what
is allowed, and proves the strongest that held. Held-out images have a veto: where they see a larger loss, the next
milder one is proven. A promised loss is tested on them; each refusal is a test that leaves the next one less of the
error.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter

from senseapp.core.errors import InfeasibleBudget, InvalidSchedule, InvalidSpec
from senseapp.core.steps import StepTitle
from senseapp.descriptions import BudgetKind
from senseapp.metrics import METRICS, MetricChange
from senseapp.metrics.bounds import most_changed_within, upper_bound_of_share
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.prove import MeasuredSchedule, Promised, Proof
from senseapp.prove.repair_choice import measured_quickly
from senseapp.records.measurement import RunResult, change_in
from senseapp.records.promise import Promise, check_promisable, too_few
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import Adapting, Limits, ResourceBudget, Schedule, StrongestFound, TriedTarget
from senseapp.solve.curve_set import curves_of
from senseapp.solve.methods import make_schedule
from senseapp.solve.trade_off import schedule_for, trade_off, true_figures

_POINTS = 6  # targets of each kind of schedule over the range; each is applied and measured
_HALVINGS = 3  # of the gap where schedules begin to fail: to an eighth of it
MOST_MEASURED = 2 * _POINTS + _HALVINGS
"""Whole schedules that are measured before the proof."""


def usual_limits(result: RunResult) -> Limits:
    """Return the limits that people begin with: at most nine tenths of a layer, no fewer bits than measured."""
    scale = result.compression.scale
    if scale.any_between:
        # of a layer: its last tenth costs most, and saves little of a network
        return Limits(min_level=0.0, max_level=0.9)
    return Limits(min_level=min(result.levels), max_level=scale.untouched)


@dataclass(slots=True)
class Trials:
    """Schedules tried so far: what each saves, and what it does on the images that repairs are fitted to.

    With ``repair``, those that lose more than ``tolerable`` are repaired where they do better so.
    """

    evaluator: ScheduleEvaluator
    kind: BudgetKind
    metric: str
    repair: bool
    tolerable: float
    tried: list[TriedTarget] = field(default_factory=list)

    def measure(self, schedule: Schedule) -> float:
        """Measure a schedule, and return what it loses."""
        changes, repaired = measured_quickly(
            self.evaluator, self.evaluator.apply(schedule), self.metric, tolerable=self.tolerable, repair=self.repair
        )
        target = TriedTarget(figure=schedule.achieved[self.kind], changes=changes, repaired=repaired)
        change = target.change(self.metric)
        if change is None:
            names = ", ".join(change.metric for change in changes)
            raise InvalidSpec(f"{self.metric} cannot be measured on these images; choose one of {names}.")
        self.tried.append(target)
        return change.delta


def strongest_schedule(
    evaluator: ScheduleEvaluator,
    kind: BudgetKind,
    allowed_drop: float,
    *,
    metric: str = "",
    repair: bool = False,
    limits: Limits | None = None,
    rounds: int = 6,
) -> StrongestFound:
    """Return the strongest optimal schedule found whose measured drop is at most ``allowed_drop``, by bisection.

    Drops are measured on the calibration images, so that the proof images can still judge the outcome, in the unit of
    ``metric`` (a fraction for top-1, nats for loss and KL), by default the run's own. With ``repair``, schedules that
    lose more are repaired where they do better so. ``rounds`` schedules are measured between the gentlest and the
    strongest.

    Raises InfeasibleBudget if even the gentlest schedule drops more (``nearest`` is its drop), InvalidSpec if the
    metric cannot be measured here, or the budget does not fit the compression.
    """
    targets = [point.target for point in trade_off(evaluator.result, kind, limits=limits)]
    if not targets:
        raise InfeasibleBudget(f"No {kind} budget can be met with what was measured.", nearest=0.0)
    trials = Trials(evaluator, kind, metric or evaluator.result.metric, repair, allowed_drop)
    gentlest, strongest, best = targets[0], targets[-1], None
    for number in range(rounds + 1):
        evaluator.progress(f"Measuring schedule {number + 1} of at most {rounds + 1}")
        target = 0.5 * (gentlest + strongest) if number else gentlest
        budget = ResourceBudget(kind=kind, target=target)
        schedule = make_schedule(evaluator.result, budget=budget, limits=limits)
        if groups := evaluator.couplings:  # a schedule of pruning gets true figures, and as budget what it truly saves
            figures = true_figures(schedule, evaluator.result.profile, groups)
            budget = ResourceBudget(kind=kind, target=figures[kind])
            schedule = replace(schedule, budget=budget, achieved=schedule.achieved | dict(figures))
        if (drop := trials.measure(schedule)) <= allowed_drop:
            gentlest, best = target, schedule
        else:
            strongest = target
        if best is None:
            raise InfeasibleBudget(
                f"A drop of at most {allowed_drop:g} cannot be met: the gentlest schedule already drops {drop:.4g}.",
                nearest=drop,
            )
    assert best is not None
    return StrongestFound(schedule=best, allowed_drop=allowed_drop, repaired=repair, tried=tuple(trials.tried))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """A recommendation, and the compressed model; None where nothing is recommended."""

    record: Recommendation
    proven: Proof | None


def recommend(
    evaluator: ScheduleEvaluator, *, allowed_drop: float | None = None, promised: Promised | None = None
) -> Recommended:
    """Return the recommendation for a run whose loss may be ``allowed_drop``, by default what its metric tolerates.

    Losses are counted in what people judge the model by, in its unit (a fraction for accuracies). With a promise, its
    tests on the held-out images decide, in its metric, and the search looks for what is likely to pass them. Where
    nothing was measured that a schedule could be made from, the record says so.

    Raises InvalidSpec if the compression's levels cannot be scheduled, or held-out images are too few for the promise.
    """
    kind = evaluator.result.compression.description.budgets[0]
    metric = evaluator.result.judged_by
    allowed = METRICS[metric].tolerable if allowed_drop is None else allowed_drop
    if promised is not None:
        check_promise(evaluator, promised.promise)
        metric, allowed = promised.promise.metric or metric, promised.promise.most
    record = Recommendation(kind=kind, metric=metric, allowed_drop=allowed, tried=())
    try:
        curves_of(evaluator.result)
    except InvalidSchedule as error:
        return Recommended(record=replace(record, missing=str(error)), proven=None)
    search = _ScheduleSearch(evaluator, kind, metric, allowed, promised)
    evaluator.progress.begin(StepTitle.SCHEDULES)
    search.measure_range()
    evaluator.progress.begin(StepTitle.PROOF)
    proven, refused = search.prove_strongest()
    record = replace(
        record,
        tried=tuple(sorted(search.ours.tried, key=attrgetter("figure"))),
        uniform=tuple(sorted(search.uniform.tried, key=attrgetter("figure"))),
        schedule=proven.result.schedule if proven else None,
        validation=proven.result if proven else None,
        refused=refused,
        held_out=evaluator.images.held_out,
        promise=promised.promise if promised is not None else None,
    )
    return Recommended(record=record, proven=proven)


def check_promise(evaluator: ScheduleEvaluator, promise: Promise) -> None:
    """Raise InvalidSpec where the held-out images of a run are too few for ``promise``, or its metric is no share."""
    check_promisable(promise.metric or evaluator.result.judged_by)
    images = evaluator.images
    if missing := too_few(len(images.proof) if images.held_out else 0, promise):
        raise InvalidSpec(missing)


def likely_to_pass(evaluator: ScheduleEvaluator, promised: Promised) -> float:
    """Return the largest loss on the proof images that would pass the next test of a promise, 0 if none would."""
    images = len(evaluator.images.proof)
    return (most_changed_within(promised.promise.most, images, 1 - promised.tests.next_error) or 0) / images


def as_likely_as_not(change: MetricChange | None) -> float:
    """Return a loss that the expected one is as likely below as above, as if of a share of images.

    Of a schedule of which no image was lost, few images say less than that nothing will be.
    """
    if change is None or not change.num_samples or math.isnan(change.delta):
        return math.inf
    count = change.num_samples
    return upper_bound_of_share(min(count, max(0, math.ceil(change.delta * count - 1e-9))), count, 0.5)


class _ScheduleSearch:
    """The schedules measured so far, by target: a fraction removed, or average bits."""

    def __init__(
        self, evaluator: ScheduleEvaluator, kind: BudgetKind, metric: str, allowed: float, promised: Promised | None
    ) -> None:
        self._evaluator, self._kind, self._metric, self._promised = evaluator, kind, metric, promised
        self._allowed = allowed if promised is None else likely_to_pass(evaluator, promised)
        self._compared = 0  # alternatives, by the proof images
        self._limits = usual_limits(evaluator.result)
        self._step = 0.1 if kind == "bits" else 0.01  # differences that people read
        self._drops: dict[float, float] = {}  # of least damage, by target, the gentlest first
        self.ours, self.uniform = (Trials(evaluator, kind, metric, True, self._allowed) for _ in range(2))

    def measure_range(self) -> None:
        """Measure both kinds of schedule over the range, and the best ones more closely where they begin to fail."""
        targets = self._range()
        for target in targets:
            self._try(target, self.ours)
            self._try(target, self.uniform)
        held = list(itertools.takewhile(self._holds, targets))
        if len(held) == len(targets):
            return
        mildest = targets[0] if self._kind == "bits" else 0.0
        good, failed = held[-1] if held else mildest, targets[len(held)]
        for _ in range(_HALVINGS):
            middle = round(round((good + failed) / 2 / self._step) * self._step, 9)
            if middle in (good, failed):
                return
            if self._try(middle, self.ours):
                good = middle
            else:
                failed = middle

    def prove_strongest(self) -> tuple[Proof | None, tuple[TriedTarget, ...]]:
        """Prove the strongest schedule that held, or the next milder one that the proof's images let pass too.

        Where repair alone is not enough, it is the strongest that held with adapted weights.
        """
        refused: list[TriedTarget] = []
        usual = self._evaluator.usual_adapting
        for target in self._candidates():
            try:
                schedule = self._make(target, "optimal")
            except (InfeasibleBudget, InvalidSpec):
                continue
            proof, changes = self._proved(schedule, usual)
            if proof is not None:
                return proof, tuple(refused)
            refused.append(TriedTarget(figure=schedule.achieved[self._kind], changes=changes))
        held = self._holding()
        if usual == "off" and held:
            return self._proved(self._make(held[0], "optimal"), "minutes")[0], tuple(refused)
        return None, tuple(refused)

    def _proved(self, schedule: Schedule, adapting: Adapting) -> tuple[Proof | None, tuple[MetricChange, ...]]:
        """Return the proof of a schedule that loses no more than is allowed or promised, else None, and its changes."""
        promised, evaluator = self._promised, self._evaluator
        judged = MeasuredSchedule(evaluator, schedule, repair=True, adapting=adapting, veto=promised is None)
        changes = judged.found.best
        self._compared += judged.found.tried
        if promised is not None:
            is_good = promised.tested(evaluator, changes).holds
        else:
            change = change_in(changes, self._metric)
            is_good = change is not None and change.delta <= self._allowed
        return judged.proven(tried=self._compared) if is_good else None, changes

    def _candidates(self) -> Iterator[float]:
        """Yield the targets that held, the strongest first, then milder ones than all that was measured."""
        holding = self._holding()[:3]  # two vetoes, before milder targets than all measured
        yield from holding
        mildest = holding[-1] if holding else min(self._drops, key=self._saving, default=0.0)
        for index in range(3):  # schedules that are proven at last, each milder than all before
            mildest = mildest + 2**index if self._kind == "bits" else mildest / 2
            if mildest >= self._step:
                yield round(mildest, 9)

    def _saving(self, target: float) -> float:
        return -target if self._kind == "bits" else target

    def _range(self) -> list[float]:
        groups = self._evaluator.couplings
        points = trade_off(
            self._evaluator.result, self._kind, _POINTS, limits=self._limits, step=self._step, groups=groups
        )
        found = (round(point.figure / self._step - 0.5) * self._step if groups else point.target for point in points)
        return list(dict.fromkeys(round(target, 9) for target in found if target > 0))

    def _holding(self) -> list[float]:
        """Return the targets that held, none of them beyond one that did not, the strongest first."""
        return list(itertools.takewhile(self._holds, sorted(self._drops, key=self._saving)))[::-1]

    def _holds(self, target: float) -> bool:
        return self._drops.get(target, float("inf")) <= self._allowed

    def _try(self, target: float, trials: Trials) -> bool:
        """Measure a schedule, where there is one; return whether it loses no more than is allowed."""
        done = len(self.ours.tried) + len(self.uniform.tried)
        self._evaluator.progress(f"{done} of about {MOST_MEASURED}")
        try:
            drop = trials.measure(self._make(target, "optimal" if trials is self.ours else "uniform"))
        except (InfeasibleBudget, InvalidSpec):
            return False
        if self._promised is not None:
            drop = as_likely_as_not(trials.tried[-1].change(self._metric))
        if trials is self.ours:
            self._drops[target] = drop
        return drop <= self._allowed

    def _make(self, target: float, method: str) -> Schedule:
        budget = ResourceBudget(kind=self._kind, target=target)
        return schedule_for(
            self._evaluator.result, budget, method=method, limits=self._limits, groups=self._evaluator.couplings
        )
