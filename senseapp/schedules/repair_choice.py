"""Measure a compressed model with and without repair, and keep the better one.

The repair is fitted to at most :data:`~senseapp.schedules.evaluator.REPAIR_IMAGES` of the curves' images.
Which of the two is better is measured on images that the fit has not seen: one half of them is judged with a repair
fitted to the other half, and the other way round; what is delivered is then fitted to all. Proof images have a veto:
where the repaired model does worse on them, it is not delivered. Both figures are reported whichever is delivered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from senseapp.data.images import ImageSet
from senseapp.metrics import METRICS, MetricChange, add_moments, change_of
from senseapp.records.measurement import change_in, loss_with_interval
from senseapp.records.schedule import Delivered
from senseapp.schedules.apply import AppliedModel
from senseapp.schedules.evaluator import ScheduleEvaluator
from senseapp.schedules.matching import Matching
from senseapp.schedules.repair import sentences_on

_LEAST_IMAGES = 16  # eight to fit to, and eight to judge on

Sums = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a compressed model loses, and which form of it is the better one.

    Attributes:
        changes: without repair.
        repaired: with repair; empty where there was none.
        delivered: which of the two the model is left in.
        reason: one sentence on why; empty where no repair was asked for.
        notes: sentences on what the repair did.
    """

    changes: tuple[MetricChange, ...]
    repaired: tuple[MetricChange, ...] = ()
    delivered: Delivered = "compressed"
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> tuple[MetricChange, ...]:
        """What the model loses as it is delivered."""
        return self.repaired if self.delivered == "repaired" else self.changes


def measured(
    bench: ScheduleEvaluator, applied: AppliedModel, metric: str, *, repair: bool, images: ImageSet
) -> Measured:
    """Measure ``applied`` on ``images``, and leave it repaired where that is better.

    Args:
        bench: the model before, and the images.
        applied: the compressed model, not repaired yet.
        metric: that decides.
        repair: whether to repair at all.
        images: those of the bench for proofs or those for curves. On the latter, each image is measured with a repair
            that has not seen it.
    """
    if not repair:
        return Measured(changes=bench.measure(applied, images))
    count = len(bench.repair_images)
    if count < _LEAST_IMAGES:
        reason = (
            f"Delivered without repair: {count} calibration images are too few to fit a repair and to judge it on "
            f"others; that takes {_LEAST_IMAGES}."
        )
        return Measured(changes=bench.measure(applied, images), reason=reason)
    matching = bench.matching(applied)
    if not matching.norms and not matching.layers:
        notes = sentences_on(matching, fitted=True, count=count)
        return Measured(changes=bench.measure(applied, images), reason=f"Delivered without repair. {notes[0]}")
    return _better(bench, applied, matching, metric, images)


def _better(
    bench: ScheduleEvaluator, applied: AppliedModel, matching: Matching, metric: str, images: ImageSet
) -> Measured:
    on_curves = images is bench.images.curves
    rest = bench.other_curves if on_curves else None
    without, plain = _sums(bench, applied, rest), () if on_curves else bench.measure(applied, images)
    held_out = _held_out(bench, applied, matching)
    with applied.active():
        fitted = held_out is not None and matching.fit()
    notes = sentences_on(matching, fitted=fitted, count=len(bench.repair_images))
    if held_out is None or not fitted:
        changes = _changes(without) if on_curves else plain
        return Measured(changes=changes, reason=f"Delivered without repair. {notes[0]}")
    if rest is not None and len(rest):
        held_out = _added(held_out, bench.sums(applied, rest))
    judged = _changes(without), _changes(held_out)
    changes, repaired = judged if on_curves else (plain, bench.measure(applied, images))
    better, reason = _reason(metric, judged, "held-out images")
    if better and not on_curves and _is_worse(metric, changes, repaired):
        better = False
        reason = _reason(metric, (changes, repaired), "proof images")[1] + " On held-out images it was better."
    if not better:
        matching.undo()
    return Measured(
        changes=changes,
        repaired=repaired,
        delivered="repaired" if better else "compressed",
        reason=reason,
        notes=notes,
    )


def _sums(bench: ScheduleEvaluator, applied: AppliedModel, rest: ImageSet | None) -> Sums:
    sums = bench.sums(applied, bench.repair_images)
    return _added(sums, bench.sums(applied, rest)) if rest is not None and len(rest) else sums


def _held_out(bench: ScheduleEvaluator, applied: AppliedModel, matching: Matching) -> Sums | None:
    """Return sums over the calibration images, each measured with a repair fitted to the other half of them."""
    first, second = bench.repair_halves
    found: list[Sums] = []
    for fit_to, judge_on in ((second, first), (first, second)):
        with applied.active(), matching.fitted(fit_to) as finite:
            if not finite:
                return None
            found.append(bench.sums(applied, bench.repair_images, *bench.span_of(judge_on)))
    return _added(*found)


def _added(first: Sums, second: Sums) -> Sums:
    return {name: add_moments(sums, second[name]) for name, sums in first.items()}


def _changes(sums: Sums) -> tuple[MetricChange, ...]:
    return tuple(change_of(name, values) for name, values in sums.items())


def _of(metric: str, changes: tuple[MetricChange, ...]) -> MetricChange:
    return change_in(changes, metric) or changes[0]


def _is_worse(metric: str, changes: tuple[MetricChange, ...], repaired: tuple[MetricChange, ...]) -> bool:
    before, after = _of(metric, changes).delta, _of(metric, repaired).delta
    return math.isnan(after) or after > before


def _reason(
    metric: str, pair: tuple[tuple[MetricChange, ...], tuple[MetricChange, ...]], where: str
) -> tuple[bool, str]:
    """Return whether the repaired model is better, and the sentence that says so with both figures."""
    before, after = (_of(metric, changes) for changes in pair)
    better = after.delta < before.delta or (math.isnan(before.delta) and math.isfinite(after.delta))
    without, with_it = (loss_with_interval(change) for change in (before, after))
    lost = METRICS[after.metric].change_title
    verdict = "with repair: it is better" if better else "without repair: it is no better with it"
    return better, (
        f"Delivered {verdict} on {after.num_samples} {where}. {lost}: {with_it} with repair, {without} without."
    )
