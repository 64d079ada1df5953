"""Prove a schedule: apply it, measure it on images that no curve has seen, beside a uniform one of equal cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.core.steps import ignore_progress
from senseapp.descriptions import BudgetKind, CompressionConfig
from senseapp.metrics import METRICS, MetricChange
from senseapp.metrics.bounds import TestSequence
from senseapp.metrics.predictions import Predictions
from senseapp.prove.answers import changed_answers
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.repair_choice import measured
from senseapp.reconstruct.apply import AppliedModel, pass_seconds, sizes_of
from senseapp.records.answers import ChangedAnswers
from senseapp.records.candidate import judged_by
from senseapp.records.measurement import RunResult, change_in, loss_with_interval
from senseapp.records.promise import Promise, Verdict, verdict_of
from senseapp.records.recommendation import saving_text
from senseapp.records.schedule import Adapting, ResourceBudget, Schedule, ValidationResult
from senseapp.solve.trade_off import schedule_for, true_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A measured schedule, and the compressed model itself, repaired if that was asked for and did better.

    ``example`` is one image that it takes, (1, C, H, W); ``dense`` is the uncompressed model; ``changed`` says which
    proof images it answers differently, for tasks with answers; ``outputs`` are those for the proof images, (N, ...);
    ``seconds`` are those of passes of one image through the uncompressed and the compressed model, in turns.
    """

    result: ValidationResult
    applied: AppliedModel
    example: Tensor
    dense: nn.Module
    changed: ChangedAnswers | None
    outputs: Predictions
    seconds: tuple[Sequence[float], Sequence[float]]


def validate(
    result: RunResult,
    schedule: Schedule,
    *,
    repair: bool,
    adapting: Adapting = "off",
    other: CompressionConfig | None = None,
    data_roots: tuple[Path, ...] = (),
    progress: Callable[[str], None] = ignore_progress,
) -> Proof:
    """Load model and images of ``result`` again and prove ``schedule``; ``other`` is how a second run compresses."""
    progress("Loading the model and the images")
    evaluator = ScheduleEvaluator.open(result, other=other, data_roots=data_roots, progress=progress)
    return prove(evaluator, schedule, repair=repair, adapting=adapting)


def prove(
    evaluator: ScheduleEvaluator, schedule: Schedule, *, repair: bool, adapting: Adapting = "off", veto: bool = True
) -> Proof:
    """Apply ``schedule`` and measure it on the proof images, with and without repair, beside a uniform schedule.

    The better of repaired and not is kept, see :mod:`senseapp.prove.repair_choice`; unless ``adapting`` is off, new
    weights are among the repairs, but not of the uniform schedule. Without ``veto``, the proof images choose nothing,
    so that a bound of the loss needs no correction.
    """
    return MeasuredSchedule(evaluator, schedule, repair=repair, adapting=adapting, veto=veto).proven()


def prove_within(
    evaluator: ScheduleEvaluator,
    schedule: Schedule,
    *,
    repair: bool = True,
    adapting: Adapting = "off",
    allowed_drop: float | None = None,
    promised: Promised | None = None,
) -> Proof:
    """Prove ``schedule``; where it loses more than ``allowed_drop``, with adapted weights too, and return the better.

    ``allowed_drop`` is in the unit of the metric that people judge the model by; None tries nothing more. What is
    ``promised`` decides in place of it: adapted weights are a further test.
    """

    def measured_with(adapting: Adapting) -> MeasuredSchedule:
        return MeasuredSchedule(evaluator, schedule, repair=repair, adapting=adapting, veto=promised is None)

    def is_enough(measured: MeasuredSchedule) -> bool:
        if promised is not None:
            return promised.tested(evaluator, measured.found.best).holds
        return allowed_drop is None or measured.loss <= allowed_drop

    first = measured_with(adapting)
    if is_enough(first) or adapting != "off":
        return first.proven()
    evaluator.progress("This loses more than is tolerated: adapting the weights")
    second = measured_with("minutes")
    better = second if promised is not None and is_enough(second) else min(second, first, key=lambda each: each.loss)
    return better.proven(tried=first.found.tried + second.found.tried)


@dataclass(slots=True, kw_only=True)
class Promised:
    """A promise, and the tests of it on the proof images so far."""

    promise: Promise
    tests: TestSequence

    def tested(self, evaluator: ScheduleEvaluator, changes: Sequence[MetricChange]) -> Verdict:
        """Test what was measured on the proof images, and return whether it keeps the promise."""
        change = change_in(changes, self.promise.metric or judged_by(changes)) if evaluator.images.held_out else None
        return verdict_of(change, self.promise, self.tests)


class MeasuredSchedule:
    """A schedule applied and measured on the proof images (``found``); :meth:`proven` makes the rest of a proof."""

    def __init__(
        self,
        evaluator: ScheduleEvaluator,
        schedule: Schedule,
        *,
        repair: bool,
        adapting: Adapting = "off",
        veto: bool = True,
    ) -> None:
        self._evaluator, self._schedule, self._repair, self._adapting = evaluator, schedule, repair, adapting
        evaluator.progress("Compressing all layers at once")
        self._applied = evaluator.apply(schedule)
        evaluator.progress(f"Measuring the compressed model{' with and without repair' if repair else ''}")
        self.found = measured(evaluator, self._applied, schedule.metric, repair=repair, adapting=adapting, veto=veto)

    @property
    def loss(self) -> float:
        """Loss in the metric that people judge the model by; infinite if it is not a number."""
        change = change_in(self.found.best, judged_by(self.found.best))
        return change.delta if change is not None and not math.isnan(change.delta) else math.inf

    def proven(self, *, tried: int = 0) -> Proof:
        """Compare answers, sizes and times with the uncompressed model's, and with a uniform schedule of equal cost.

        ``tried`` is how many alternatives the proof images compared, where others came before this one.
        """
        evaluator, final, applied, found = self._evaluator, self._schedule, self._applied, self.found
        proof, dense, result = evaluator.images.proof, evaluator.dense, evaluator.result
        before, outputs = evaluator.judge(proof).original.outputs, evaluator.judged(applied, proof).outputs
        budget = final.budget
        saved = final.achieved.get(budget.kind) if budget is not None else None
        subject = f"a schedule to {saving_text(budget.kind, saved)}" if budget and saved is not None else "a schedule"
        changed = changed_answers(
            before, outputs, proof, task=evaluator.task, names=evaluator.class_names, subject=subject
        )
        example = dense.batches(0, 1)[0]
        seconds = pass_seconds((dense.model, applied.model), example)
        was, now = sizes_of(applied, dense.model)
        evaluator.progress("Measuring one amount for all layers, to compare")
        rival, rival_note = _uniform(evaluator, final, applied)
        uniform = None
        if rival is not None:
            uniform = measured(evaluator, evaluator.apply(rival), final.metric, repair=self._repair)
        predicts_adapted = result.spec.sensitivity.adapted and self._adapting != "off"
        return Proof(
            result=ValidationResult(
                schedule=final,
                held_out=evaluator.images.held_out,
                changes=found.changes,
                repaired=found.repaired,
                delivered=found.delivered,
                delivered_reason=found.reason,
                uniform=uniform.changes if uniform else (),
                uniform_repaired=uniform.repaired if uniform else (),
                uniform_delivered=uniform.delivered if uniform else "",
                uniform_achieved=rival.achieved if rival else {},
                adapting=self._adapting,
                steps=found.steps,
                tried=tried or found.tried,
                predicted=final.predicted_damage,
                sizes={name: (getattr(was, name), getattr(now, name)) for name in ("params", "zeros", "macs")},
                notes=(
                    evaluator.images.note,
                    *_disagreement(final, found.best if predicts_adapted else found.changes, found.best),
                    *_short_of_budget(evaluator, final, applied),
                    *applied.notes,
                    *found.notes,
                    *filter(None, [rival_note]),
                ),
            ),
            applied=applied,
            example=example,
            dense=dense.model,
            changed=changed,
            outputs=outputs,
            seconds=(seconds[0], seconds[1]),
        )


def true_figure(evaluator: ScheduleEvaluator, applied: AppliedModel, kind: BudgetKind) -> float:
    """Return the figure of a budget of ``kind`` for the model as applied."""
    before, after = sizes_of(applied, evaluator.dense.model)
    return after.figure(kind, before)


def _uniform(evaluator: ScheduleEvaluator, schedule: Schedule, applied: AppliedModel) -> tuple[Schedule | None, str]:
    """Return the uniform schedule that costs at most as much as ``schedule`` truly does, or why there is none."""
    result = evaluator.result
    kinds = {entry.compression for entry in schedule.entries} - {"none"}
    compression = result.compression.description
    if kinds != {compression.name}:
        return None, "A uniform schedule is compared only with schedules of the run's own compression."
    kind = schedule.budget.kind if schedule.budget else compression.equal_cost
    target = true_figure(evaluator, applied, kind)
    if schedule.budget and kind == "bits":
        target = max(target, schedule.budget.target)  # whole bits: what was asked for can be met by all layers
    groups = evaluator.couplings
    if groups:
        target = true_figures(schedule, result.profile, groups)[kind]
    try:
        budget = ResourceBudget(kind=kind, target=target)
        uniform = schedule_for(result, budget, method="uniform", metric=schedule.metric, groups=groups)
    except (InfeasibleBudget, InvalidSpec) as error:
        return None, f"There is no uniform schedule of equal cost. {error}"
    if kind == "bits" and (cost := true_figure(evaluator, evaluator.apply(uniform), kind)) < target - 0.05:
        return uniform, f"The uniform schedule has {cost:.3g} bits on average: no common level lies nearer."
    return uniform, ""


def _disagreement(
    schedule: Schedule, changes: tuple[MetricChange, ...], delivered: tuple[MetricChange, ...]
) -> tuple[str, ...]:
    """Note that ``changes`` lie off the prediction, with what is ``delivered`` where a repair is kept."""
    found = change_in(changes, schedule.metric)
    if found is None or found.ci_low <= schedule.predicted_damage <= found.ci_high:
        return ()
    text = METRICS[schedule.metric].change_text
    predicted = text(schedule.predicted_damage)
    if predicted == text(found.delta):
        return ()
    how = "more" if found.delta > schedule.predicted_damage else "less"
    said = f"lose {how} than predicted: {loss_with_interval(found)}, not {predicted}"
    kept = change_in(delivered, schedule.metric)
    if kept is None or delivered is changes:
        return (f"The layers {said}.",)
    return (f"Before the repair, the layers {said}. What is delivered loses {loss_with_interval(kept)}.",)


def _short_of_budget(evaluator: ScheduleEvaluator, schedule: Schedule, applied: AppliedModel) -> tuple[str, ...]:
    """Note a saving below the budget: joint savings of neighbouring pruned layers are estimates."""
    if schedule.budget is None or schedule.budget.kind == "bits":
        return ()
    kind, target = schedule.budget.kind, schedule.budget.target
    found = true_figure(evaluator, applied, kind)
    if found >= target - 0.005:  # of the total: nearer to the budget than people can tell
        return ()
    return (f"{100 * target:.1f} % of the {kind} were to go, and {100 * found:.1f} % truly went.",)
