"""The conditions of a check: the bound of the loss below its limit, the time, and finite numbers."""

from __future__ import annotations

import math

from senseapp.core.texts import plural
from senseapp.metrics import METRICS
from senseapp.metrics.bounds import images_needed
from senseapp.metrics.classification import Agreement, TopAccuracy
from senseapp.metrics.records import RecordMetric
from senseapp.prove.judge import Judgement
from senseapp.records.check import CheckedLimit, LossBound
from senseapp.records.deployment import Median
from senseapp.records.promise import CONFIDENCE


def comparable(images: int, not_finite: int) -> CheckedLimit:
    """Return that both files answer the same images, unless some answers of the candidate are no numbers."""
    count = plural(images, "image")
    said = f"Both files answer the same {count} in the same form."
    if not_finite:
        said = f"The compressed file returns numbers that are not finite (NaN or infinite) on {not_finite} of {count}."
    return CheckedLimit(name="comparable", holds=not not_finite, sentence=said)


def loss_bound(judged: Judgement, name: str, allowed: float) -> LossBound:
    """Return the loss in the metric ``name`` with its one-sided upper bound.

    Shares of answers have an exact bound for any number of images; means in a known range one that holds for any
    number too; metrics of all images together one that simulations support; metrics without a range the end of their
    interval. See :meth:`~senseapp.metrics.base.Metric.upper_bound`.
    """
    metric, change = METRICS[name], judged.change(name)
    images, moments = change.num_samples, change.moments
    upper, needed = metric.upper_bound(moments, CONFIDENCE), None
    is_guaranteed = metric.is_share and not isinstance(metric, RecordMetric)
    if isinstance(metric, Agreement):
        how = "exact binomial"
        needed = images_needed(allowed, CONFIDENCE, rate=moments[2] / images) if allowed else None
    elif isinstance(metric, TopAccuracy):
        how = "exact for paired answers"
        if allowed and moments[2] == moments[3]:  # no answer became right
            needed = images_needed(allowed, CONFIDENCE, rate=moments[2] / images)
    elif isinstance(metric, RecordMetric):
        how = "bootstrap over these images and one on which all is lost"
    elif math.isfinite(metric.least_loss) and math.isfinite(metric.most_loss):
        how = "betting"
    else:
        how, is_guaranteed = "upper end of the interval, for many images", False
    return LossBound(
        metric=name,
        delta=change.delta,
        upper=max(upper, change.delta) if not math.isnan(change.delta) else math.inf,
        allowed=allowed,
        how=how,
        guaranteed=is_guaranteed,
        images=images,
        images_needed=needed if needed is None or needed > images else None,
    )


def loss_limit(bound: LossBound, *, own_images: int = 0) -> CheckedLimit:
    """Return whether the loss is at most what is allowed, with the confidence of its bound.

    ``own_images`` are those among the images that the file was made with, on which it may lose less than on new ones.
    """
    metric = METRICS[bound.metric]
    lost, upper = metric.change_text(bound.delta), metric.change_text(bound.upper)
    allowed, images = metric.limit_text(bound.allowed), plural(bound.images, "image")
    said = f"{metric.change_title}: {lost} on {images}, with {100 * bound.confidence:.0f} % certainty at most {upper}"
    own = min(own_images, bound.images)
    with_own = f" The file was made with {own:,} of these {images}, so it may lose more on new ones." if own else ""
    holds = bound.upper <= bound.allowed
    if holds or not bound.delta <= bound.allowed:
        return CheckedLimit(name="loss", holds=holds, sentence=f"{said}; the limit is {allowed}.{with_own}")
    needed = bound.images_needed
    more = "" if needed is None else f" About {needed:,} images with as few changes would show it."
    return CheckedLimit(
        name="loss",
        holds=False,
        undecided=True,
        sentence=f"{said}: these images are too few to show that it is at most {allowed}.{more}{with_own}",
    )


def time_limit(ratio: Median, allowed: float) -> CheckedLimit:
    """Return whether the candidate takes at most ``allowed`` times as long, by the interval of the median ratio."""
    said = f"It takes {ratio.times_text} of the original"
    holds = ratio.high <= allowed
    if holds or ratio.low > allowed:
        return CheckedLimit(name="time", holds=holds, sentence=f"{said}; the limit is {allowed:g}.")
    return CheckedLimit(
        name="time",
        holds=False,
        undecided=True,
        sentence=f"{said}: that is too close to the allowed {allowed:g} to tell on this machine.",
    )
