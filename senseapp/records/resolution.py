"""What the images of a run can show: which losses are not lost in chance, and whether the model works at all.

Headline, default metric, leaderboard, schedules and colours all ask here. docs/INTERVALS.md says why it is so.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from senseapp.core.wording import plural
from senseapp.metrics import METRICS, divergence_among, primary_among
from senseapp.records.measurement import SensitivityResult, Status
from senseapp.tasks import task_named

_WHOLE_FROM = 10.0


def default_metric(metrics: Collection[str], num_images: int) -> str:
    """Return the metric to rank by: the labelled primary one where ``num_images`` can show a notable drop, else KL.

    With fewer than 381 labelled images the interval of a layer that changes no answer reaches beyond one point.
    """
    primary = primary_among(metrics, labelled=True)
    if primary is not None and METRICS[primary].unchanged_upper_end(num_images) <= METRICS[primary].notable:
        return primary
    return divergence_among(metrics) or next(iter(metrics))


def smallest_visible_loss(result: SensitivityResult, metric: str, level: float | None = None) -> float | None:
    """Return the smallest loss in ``metric``, in the unit of ``delta``, that the run's images can show, or None.

    That is the median upper end of the 95 % intervals that reach zero at ``level``; None where none does. Without a
    level, the least of all levels: where layers change most, intervals are long for other reasons than the number of
    images.
    """
    ends: dict[float, list[float]] = {}
    for item in result.measurements:
        change = item.change(metric) if item.status is Status.MEASURED else None
        if change is not None and change.has_interval and change.ci_low <= 0 and level in (None, item.level):
            ends.setdefault(item.level, []).append(change.ci_high)
    return min((statistics.median(found) for found in ends.values()), default=None)


def can_show(result: SensitivityResult, metric: str, loss: float) -> bool:
    """Whether the images of ``result`` show a ``loss`` of that size in ``metric``, as far as intervals are known."""
    visible = smallest_visible_loss(result, metric)
    return visible is None or visible <= loss


def hides_losses(result: SensitivityResult, metric: str) -> str:
    """Say that losses which matter stay hidden, as part of a sentence; empty where the images show them.

    ``20 images cannot show a drop in top-1 accuracy under about 16 points``.
    """
    visible = smallest_visible_loss(result, metric)
    if visible is None or visible <= METRICS[metric].notable:
        return ""
    what = METRICS[metric].change_inside
    return f"{_images(result)} cannot show a {what} under about {visible_words(metric, visible)}"


def visible_words(metric: str, loss: float) -> str:
    """Return a :func:`smallest_visible_loss` no more exactly than it is known: ``16 points``, ``0.6 points``."""
    shown = METRICS[metric]
    scaled = shown.factor * loss
    return f"{scaled:.0f} {shown.change_unit}" if scaled >= _WHOLE_FROM else shown.change_text(loss)


def cannot_tell(
    low: NDArray[np.float64], delta: NDArray[np.float64], high: NDArray[np.float64], notable: float
) -> NDArray[np.bool_]:
    """Whether 95 % intervals leave open if losses are tolerable: they hold more than ``notable``, and none."""
    return (high > notable) & ((low <= 0) | (delta <= notable))


def baseline_warning(result: SensitivityResult) -> str:
    """Say that the uncompressed model does not do its task on these images; empty where it does, or nobody knows."""
    if not result.num_samples or not result.profile.pretrained:
        return ""
    task = task_named(result.spec.model.task)
    return task.baseline_warning(result.baseline, result.num_samples, result.profile.num_classes)


def _images(result: SensitivityResult) -> str:
    return plural(result.num_samples, "image")
