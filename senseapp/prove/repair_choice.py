"""Measure a compressed model with and without repair, and keep the better one.

There may be several repairs: of the statistics alone (:mod:`senseapp.reconstruct.repair`), and with new weights for the
compressed layers (:mod:`senseapp.reconstruct.adapt.weights`), or for those that read removed channels
(:mod:`senseapp.reconstruct.adapt.pruned`). The best of them is the one that is meant here. It is fitted to at most
:data:`~senseapp.records.spec.REPAIR_IMAGES` of the curves' images, the calibration images. Which of the two is better
is measured on those that the fit has not seen: one half of them is judged with a repair fitted to the other half, and
the other way round; what is delivered is then fitted to all. Held-out images, those of proofs, have a veto: where the
repaired model does worse on them, it is not delivered. They have none where a loss is promised: images that choose
between two forms cannot judge the better one without a correction. Both figures are reported whichever is delivered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from senseapp.core.steps import OptionalSteps
from senseapp.data.images import ImageSet
from senseapp.metrics import METRICS, MetricChange, change_of, merge_moments
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.reconstruct.apply import AppliedModel
from senseapp.reconstruct.repair import Matching, Repair
from senseapp.records.measurement import change_in, loss_with_interval
from senseapp.records.schedule import Adapting, Delivered, RepairStep

_LEAST_IMAGES = 16  # eight to fit to, and eight to judge on
_UNREPAIRED = "As compression leaves it"
_CROSSED = "calibration images, each half with a fit to the other half"

Sums = Mapping[str, tuple[float, ...]]
Changes = tuple[MetricChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Losses of a compressed model without repair and, if there was one, with it, and the better form.

    Attributes:
        delivered: which of the two the model is left in.
        reason: one sentence on why; empty where no repair was asked for.
        notes: sentences on what the repair did.
        steps: what was tried, with what it loses on images that it was not fitted to; empty with one repair alone.
        tried: forms between which held-out images chose, this one included.
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
    images: ImageSet,
    adapting: Adapting = "off",
    veto: bool = True,
) -> Measured:
    """Measure ``applied``, not repaired yet, on ``images``; leave it repaired where ``metric`` says that is better.

    ``images`` are those for proofs or those for curves. On the latter, each image is measured with a repair that has
    not seen it. Unless ``adapting`` is off, new weights are tried as well. Without ``veto``, proof images only measure.
    """
    if not repair and adapting == "off":
        return Measured(changes=evaluator.judged(applied, images).changes)
    reconstruction = evaluator.reconstruction
    count = len(reconstruction.repair_images)
    if count < _LEAST_IMAGES:
        reason = (
            f"Delivered without repair: {count} calibration images are too few to fit a repair and to judge it on "
            f"others; that takes {_LEAST_IMAGES}."
        )
        return Measured(changes=evaluator.judged(applied, images).changes, reason=reason)
    steps = OptionalSteps(evaluator.progress)
    repairs, reasons = list[Repair](), steps.notes
    with steps.trying("repair"):
        matching = reconstruction.matching(applied)
        repairs += [matching] if repair and (matching.norms or matching.layers) else []
        repairs += reconstruction.adaptations(applied, adapting)
        reasons = [*matching.sentences(fitted=True)]
    if not repairs:
        return Measured(
            changes=evaluator.judged(applied, images).changes, reason=f"Delivered without repair. {reasons[0]}"
        )
    return _better(evaluator, applied, repairs, metric, images, steps, veto=veto)


def measured_quickly(
    evaluator: ScheduleEvaluator, applied: AppliedModel, metric: str, *, tolerable: float
) -> tuple[Changes, bool]:
    """Return what ``applied`` loses on the images that repairs are fitted to, and whether that is after repair.

    It stays as it is. Each image is measured with a repair that has not seen it, and nothing is repaired that loses no
    more than ``tolerable``: this is for searches, whose outcome is proven. Where layers were measured with adapted
    weights, the repair adapts them, in the first of the ways that the proof tries.
    """
    reconstruction = evaluator.reconstruction
    without = evaluator.judged(applied, reconstruction.repair_images).moments
    lost = _loss(metric, without)
    if lost > tolerable and len(reconstruction.repair_images) >= _LEAST_IMAGES:
        matching = reconstruction.matching(applied)
        adapted = reconstruction.adaptations(applied, reconstruction.usual_adapting)
        repairs: list[Repair] = [*adapted[:1]] or ([matching] if matching.norms or matching.layers else [])
        steps = OptionalSteps(evaluator.progress)
        crossed = _tried(evaluator, applied, repairs, metric, steps)[1][1] if repairs else None
        if crossed is not None and _loss(metric, crossed) < lost:
            return _changes(crossed), True
    return _changes(without), False


def _better(
    evaluator: ScheduleEvaluator,
    applied: AppliedModel,
    repairs: Sequence[Repair],
    metric: str,
    images: ImageSet,
    steps: OptionalSteps,
    *,
    veto: bool,
) -> Measured:
    on_curves = images is evaluator.images.curves
    other_curves = evaluator.reconstruction.other_curves
    others = other_curves if on_curves and len(other_curves) else None
    without: Sums = evaluator.judged(applied, evaluator.reconstruction.repair_images).moments
    if others is not None:
        without = _added(without, evaluator.judged(applied, others).moments)
    changes = _changes(without) if on_curves else evaluator.judged(applied, images).changes
    adapted = any(not isinstance(each, Matching) for each in repairs)
    form = "adapted weights" if adapted else "repair"
    tried, (repair, crossed) = _tried(evaluator, applied, repairs, metric, steps)
    fitted = False
    with steps.trying(_as_noun(repair)), applied.active():
        fitted = crossed is not None and repair.fit()
    if crossed is None or not fitted:
        repair.undo()
        reason, *notes = steps.notes or repair.sentences(fitted=False)[:1]
        return Measured(changes=changes, reason=f"Delivered without repair. {reason}", notes=tuple(notes))
    if others is not None:
        crossed = _added(crossed, evaluator.judged(applied, others).moments)
    repaired = _changes(crossed) if on_curves else evaluator.judged(applied, images).changes
    better, reason = _verdict(metric, _changes(without), _changes(crossed), _CROSSED, form)
    plain, mended = _of(metric, changes).delta, _of(metric, repaired).delta
    has_veto = better and veto and not on_curves
    if has_veto and (math.isnan(mended) or mended > plain):
        better = False
        reason = _verdict(metric, changes, repaired, "held-out images", form)[1] + f" It was better on {_CROSSED}."
    if not better:
        repair.undo()
    forms = [(each.title, sums, better and each is repair) for each, sums in tried]
    return Measured(
        changes=changes,
        repaired=repaired,
        delivered=("adapted" if adapted else "repaired") if better else "compressed",
        reason=reason,
        notes=(*steps.notes, *repair.sentences(fitted=True)),
        steps=tuple(
            RepairStep(title=title, change=_of(metric, _changes(sums)), kept=kept)
            for title, sums, kept in [(_UNREPAIRED, without, not better), *forms]
            if adapted and sums is not None
        ),
        tried=2 if has_veto else 1,
    )


Tried = tuple[Repair, Sums | None]
"""A repair, with what the network loses with it on images that it was not fitted to; None where it is not finite."""


def _tried(
    evaluator: ScheduleEvaluator, applied: AppliedModel, repairs: Sequence[Repair], metric: str, steps: OptionalSteps
) -> tuple[list[Tried], Tried]:
    """Return what was measured of each repair, None where it failed, and which is best.

    Each image is measured with a repair fitted to the other half of them. New weights that do worse than others on the
    first half are not fitted again for the second: a fit is most of the time.
    """
    first, second = evaluator.reconstruction.repair_halves
    halves = [_judged(evaluator, applied, each, steps, fit_to=second, judge_on=first) for each in repairs]
    least = min(_loss(metric, sums) for sums in halves)
    tried, whole = list[Tried](), list[Tried]()
    for each, sums in zip(repairs, halves, strict=True):
        if sums is None or not (isinstance(each, Matching) or _loss(metric, sums) <= least):
            tried.append((each, sums))
            continue
        other = _judged(evaluator, applied, each, steps, fit_to=first, judge_on=second)
        whole.append((each, None if other is None else _added(sums, other)))
        tried.append(whole[-1])
    return tried, min(whole or tried, key=lambda each: _loss(metric, each[1]))


def _loss(metric: str, sums: Sums | None) -> float:
    delta = math.nan if sums is None else _of(metric, _changes(sums)).delta
    return math.inf if math.isnan(delta) else delta


def _judged(
    evaluator: ScheduleEvaluator,
    applied: AppliedModel,
    repair: Repair,
    steps: OptionalSteps,
    *,
    fit_to: range,
    judge_on: range,
) -> Sums | None:
    sums: Sums | None = None
    with steps.trying(_as_noun(repair)), applied.active(), repair.fitted(fit_to) as finite:
        if finite:
            fitted = evaluator.reconstruction
            sums = evaluator.judged(applied, fitted.repair_images, *fitted.span_of(judge_on)).moments
    return sums


def _as_noun(repair: Repair) -> str:
    return f"the repair '{repair.title}'"


def _added(first: Sums, second: Sums) -> Sums:
    return {name: merge_moments(name, sums, second[name]) for name, sums in first.items()}


def _changes(sums: Sums) -> Changes:
    return tuple(change_of(name, values) for name, values in sums.items())


def _of(metric: str, changes: Changes) -> MetricChange:
    return change_in(changes, metric) or changes[0]


def _verdict(metric: str, changes: Changes, repaired: Changes, where: str, form: str) -> tuple[bool, str]:
    """Return whether the repaired model is better, and the sentence that says so with both figures.

    ``form`` is what was done to it.
    """
    before, after = _of(metric, changes), _of(metric, repaired)
    better = after.delta < before.delta or (math.isnan(before.delta) and math.isfinite(after.delta))
    without, with_it = (loss_with_interval(change) for change in (before, after))
    lost = METRICS[after.metric].change_title
    verdict = f"with {form}: it is better" if better else f"without {form}: it is no better with it"
    return better, (
        f"Delivered {verdict} on {after.num_samples} {where}. {lost}: {with_it} with {form}, {without} without."
    )
