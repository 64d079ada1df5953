"""From summed moments to a metric's change with its interval.

Moments of top-1, top-5, loss, KL and agreement are (n, Σ baseline, Σ d, Σ d², Σ d³), with d the worsening of one
image (> 0 means worse). Moments of SQNR are (n, Σ s, Σ e, Σ s², Σ e², Σ s e), with s the energy of one image's
original class scores and e that of their error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from senseapp.errors import InvalidInput
from senseapp.evaluate.intervals import (
    Interval,
    discordant_interval,
    mean_interval,
    nonnegative_mean_interval,
    proportion_interval,
    ratio_interval,
)
from senseapp.results.measurement import MetricChange
from senseapp.results.metrics import METRIC_FACTS

Moments = Sequence[float]


def check_metric(metric: str) -> None:
    """Raise InvalidInput unless ``metric`` is one that senseapp measures."""
    if metric not in METRIC_FACTS:
        raise InvalidInput(f"The metric must be one of {', '.join(METRIC_FACTS)}, got {metric!r}.")


def add_moments(first: Moments, second: Moments) -> tuple[float, ...]:
    """Merge the moments of two disjoint sets of images.

    Counts (top-1, top-5, agreement) merge exactly; the others up to the rounding of one float64 addition.
    """
    return tuple(a + b for a, b in zip(first, second, strict=True))


def change_of(metric: str, moments: Moments, confidence: float = 0.95) -> MetricChange:
    """Return the change of ``metric`` and its interval.

    An image on which the compressed model's loss or KL is not finite makes delta infinite, and its interval the
    single point inf: with any such image the expected damage has no bound. A baseline that is not finite makes
    loss, KL and SQNR undefined (nan).

    Args:
        metric: its name.
        moments: as from :func:`senseapp.evaluate.moments_of`, merged with :func:`add_moments`.
        confidence: nominal coverage of the interval.

    Raises:
        InvalidInput: unknown metric, no images, or a confidence outside 0.5 to 1.
    """
    check_metric(metric)
    if metric == "sqnr":
        return _ratio_change(moments, confidence)
    num_samples = int(moments[0])
    low, high = _INTERVALS[metric](moments, confidence)  # first, as it refuses an empty set of images
    direction = -1 if METRIC_FACTS[metric].higher_is_better else 1
    return MetricChange(
        metric=metric,
        baseline=moments[1] / num_samples,
        value=(moments[1] + direction * moments[2]) / num_samples,
        delta=moments[2] / num_samples,
        ci_low=low,
        ci_high=high,
        num_samples=num_samples,
        moments=tuple(moments),
    )


def _discordant(moments: Moments, confidence: float) -> Interval:
    changed, excess = round(moments[3]), round(moments[2])
    return discordant_interval((changed + excess) // 2, (changed - excess) // 2, int(moments[0]), confidence)


def _proportion(moments: Moments, confidence: float) -> Interval:
    return proportion_interval(round(moments[2]), int(moments[0]), confidence)


def _mean(moments: Moments, confidence: float) -> Interval:
    return mean_interval(int(moments[0]), (moments[2], moments[3], moments[4]), confidence)


def _nonnegative(moments: Moments, confidence: float) -> Interval:
    return nonnegative_mean_interval(int(moments[0]), (moments[2], moments[3], moments[4]), confidence)


_INTERVALS: dict[str, Callable[[Moments, float], Interval]] = {
    "top1": _discordant,
    "top5": _discordant,
    "agreement": _proportion,
    "loss": _mean,
    "kl": _nonnegative,
}


def _ratio_change(moments: Moments, confidence: float) -> MetricChange:
    num_samples, signal, error, signal_squares, error_squares, cross = moments
    low, high = ratio_interval(int(num_samples), (signal, error), (signal_squares, error_squares, cross), confidence)
    ratio = _ratio(error, signal)
    return MetricChange(
        metric="sqnr",
        baseline=math.inf,
        value=_decibels(ratio),
        delta=ratio,
        ci_low=low,
        ci_high=high,
        num_samples=int(num_samples),
        moments=tuple(moments),
    )


def _ratio(error: float, signal: float) -> float:
    if error == 0:
        return 0.0
    return error / signal if signal else math.inf


def _decibels(noise_to_signal: float) -> float:
    if noise_to_signal == 0:
        return math.inf
    return -10 * math.log10(noise_to_signal) if noise_to_signal < math.inf else -math.inf
