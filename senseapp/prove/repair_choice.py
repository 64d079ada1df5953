"""Measure a compressed model with and without repair, and keep the better one.

Repairs are of the statistics alone, or with new weights. They are fitted to at most
:data:`~senseapp.records.spec.REPAIR_IMAGES` of the curves' images, the calibration images, and compared on those that a
fit has not seen: one half of them is judged with a repair fitted to the other half, and the other way round; what is
delivered is then fitted to all. Held-out images, those of proofs, have a veto: where the repaired model does worse on
them, it is not delivered. They have none where a loss is promised: images that choose between two forms cannot judge
the better one without a correction. Both figures are reported whichever is delivered.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from senseapp.core.steps import OptionalSteps
from senseapp.metrics import METRICS, MetricChange, change_of
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.reconstruct.apply import AppliedModel
from senseapp.reconstruct.repair import Repair
from senseapp.records.measurement import change_in, loss_with_interval
from senseapp.records.schedule import Adapting, Delivered, RepairStep

_LEAST_IMAGES = 16  # eight to fit to, and eight to judge on
_UNREPAIRED = "As compression leaves it"
_CROSSED = "calibration images, each half with a fit to the other half"

Changes = tuple[MetricChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Losses of a compressed model without repair and, if there was one, with it, and the better form.

    ``delivered`` is the form that the model is left in, ``reason`` one sentence on why, empty where no repair was asked
    for. ``steps`` are what was tried, with what it loses on images that it was not fitted to; empty with one repair
    alone. ``tried`` counts the forms between which held-out images chose, this one included.
    """

    changes: Changes
    repaired: Changes = ()
    delivered: Delivered = "compressed"
    reason: str = ""
    notes: tuple[str, ...] = ()
    steps: tuple[RepairStep, ...] = ()
    tried: int = 1

    @property
    def best(self) -> Changes:
        """Losses of the model as delivered."""
        return self.changes if self.delivered == "compressed" else self.repaired


def measured(
    evaluator: ScheduleEvaluator,
    applied: AppliedModel,
    metric: str,
    *,
    repair: bool,
    adapting: Adapting = "off",
    veto: bool = True,
) -> Measured:
    """Measure ``applied`` on the proof images; leave it repaired where ``metric`` says that is better.

    Unless ``adapting`` is off, new weights are tried as well. Without ``veto``, proof images only measure.
    """
    changes = evaluator.judged(applied).changes
    if not repair and adapting == "off":
        return Measured(changes=changes)
    count = len(evaluator.repair_images)
    if count < _LEAST_IMAGES:
        reason = (
            f"Delivered without repair: {count} calibration images are too few to fit a repair and to judge it on "
            f"others; that takes {_LEAST_IMAGES}."
        )
        return Measured(changes=changes, reason=reason)
    steps = OptionalSteps(evaluator.progress)
    repairs, words = _repairs(evaluator, applied, adapting, steps, repair=repair)
    if not repairs:
        return Measured(changes=changes, reason=f"Delivered without repair. {words[0]}")
    without = evaluator.judged(applied, evaluator.repair_images).changes
    tried = {how: crossed(evaluator, applied, each, steps) for how, each in repairs.items()}
    how = min(tried, key=lambda each: _loss(metric, tried[each]))
    best, crossing, fitted = repairs[how], tried[how], False
    with steps.trying(f"the repair '{best.title}'"), applied.active():
        fitted = crossing is not None and best.fit()
    if crossing is None or not fitted:
        best.undo()
        reason, *notes = steps.notes or best.sentences(fitted=False)[:1]
        return Measured(changes=changes, reason=f"Delivered without repair. {reason}", notes=tuple(notes))
    repaired = evaluator.judged(applied).changes
    form = "adapted weights" if how == "adapted" else "repair"
    better, reason = _verdict(metric, without, crossing, _CROSSED, form)
    has_veto = better and veto
    plain, mended = _of(metric, changes).delta, _of(metric, repaired).delta
    if has_veto and (math.isnan(mended) or mended > plain):
        better = False
        reason = _verdict(metric, changes, repaired, "held-out images", form)[1] + f" It was better on {_CROSSED}."
    if not better:
        best.undo()
    forms: list[tuple[str, Changes | None, bool]] = [(_UNREPAIRED, without, not better)]
    forms += [(repairs[each].title, found, better and each == how) for each, found in tried.items()]
    return Measured(
        changes=changes,
        repaired=repaired,
        delivered=how if better else "compressed",
        reason=reason,
        notes=(*steps.notes, *best.sentences(fitted=True)),
        steps=tuple(
            RepairStep(title=title, change=_of(metric, found), kept=kept)
            for title, found, kept in forms
            if "adapted" in repairs and found is not None
        ),
        tried=2 if has_veto else 1,
    )


def _repairs(
    evaluator: ScheduleEvaluator, applied: AppliedModel, adapting: Adapting, steps: OptionalSteps, *, repair: bool
) -> tuple[dict[Delivered, Repair], Sequence[str]]:
    """Return what may repair a model, by what it is then delivered as, and sentences on that; else why nothing may."""
    found, words = dict[Delivered, Repair](), steps.notes
    with steps.trying("repair"):
        matching = evaluator.matching(applied)
        if repair and (matching.norms or matching.layers):
            found["repaired"] = matching
        if adapting != "off" and (adaptation := evaluator.adaptation(applied, adapting)) is not None:
            found["adapted"] = adaptation
        words = [*matching.sentences(fitted=True)]
    return found, words


def measured_quickly(
    evaluator: ScheduleEvaluator, applied: AppliedModel, metric: str, *, tolerable: float, repair: bool = True
) -> tuple[Changes, bool]:
    """Return what ``applied`` loses on the images that repairs are fitted to, and whether that is after repair.

    It stays as it is. Each image is measured with a repair that has not seen it, and nothing is repaired that loses no
    more than ``tolerable``: this is for searches, whose outcome is proven. Where layers were measured with adapted
    weights, the repair adapts them.
    """
    without = evaluator.judged(applied, evaluator.repair_images).changes
    lost = _loss(metric, without)
    if repair and lost > tolerable and len(evaluator.repair_images) >= _LEAST_IMAGES:
        adaptation = evaluator.adaptation(applied) if evaluator.usual_adapting != "off" else None
        tried: Repair = evaluator.matching(applied) if adaptation is None else adaptation
        mended = crossed(evaluator, applied, tried, OptionalSteps(evaluator.progress))
        if mended is not None and _loss(metric, mended) < lost:
            return mended, True
    return without, False


def crossed(
    evaluator: ScheduleEvaluator, applied: AppliedModel, repair: Repair, steps: OptionalSteps
) -> Changes | None:
    """Return what ``applied`` loses with ``repair``, each half of the calibration images with a fit to the other half.

    It stays as it is. None where the repair fails or is not finite.
    """
    found = list[Mapping[str, tuple[float, ...]]]()
    first, second = evaluator.repair_halves
    for (fit_to, _), (_, judge_on) in ((second, first), (first, second)):
        with steps.trying(f"the repair '{repair.title}'"), applied.active(), repair.fitted(fit_to) as finite:
            if finite:
                found.append(evaluator.judged(applied, evaluator.repair_images, *judge_on).moments)
    if len(found) < 2:
        return None
    return tuple(change_of(name, METRICS[name].merge(sums, found[1][name])) for name, sums in found[0].items())


def _loss(metric: str, changes: Changes | None) -> float:
    delta = math.nan if changes is None else _of(metric, changes).delta
    return math.inf if math.isnan(delta) else delta


def _of(metric: str, changes: Changes) -> MetricChange:
    return change_in(changes, metric) or changes[0]


def _verdict(metric: str, changes: Changes, repaired: Changes, where: str, form: str) -> tuple[bool, str]:
    """Return whether the model ``form`` is better, and the sentence that says so with both figures."""
    before, after = _of(metric, changes), _of(metric, repaired)
    better = after.delta < before.delta or (math.isnan(before.delta) and math.isfinite(after.delta))
    without, with_it = (loss_with_interval(change) for change in (before, after))
    lost = METRICS[after.metric].change_title
    verdict = f"with {form}: it is better" if better else f"without {form}: it is no better with it"
    return better, (
        f"Delivered {verdict} on {after.num_samples} {where}. {lost}: {with_it} with {form}, {without} without."
    )
