"""Metrics: every metric is one object, from which all of its properties are derived.

A new metric is one file with a :class:`Metric`, and its line in :data:`METRICS` or an entry point of that group.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from senseapp.core.registry import Registry
from senseapp.metrics.base import Interval, Metric, MetricChange, Moments, number_text, powers
from senseapp.metrics.classification import ClassificationMetric, check_labels

if TYPE_CHECKING:
    from senseapp.metrics.predictions import Predictions

_OWN = ("TOP1", "TOP5", "LOSS", "KL", "AGREEMENT", "SQNR")
METRICS: Registry[Metric] = Registry(
    "metric",
    group="senseapp.metrics",
    own=tuple(f"senseapp.metrics.classification:{name}" for name in _OWN),
    filled_by="senseapp.tasks:TASKS",
)
"""All metrics, in the order in which they are shown; those of tasks come with their task."""


def metric_named(name: str) -> Metric:
    """Return the metric of that name; raises InvalidSpec where there is none."""
    return METRICS.named(name)


def moments_of(name: str, baseline_output: Predictions, output: Predictions, targets: Any) -> tuple[float, ...]:
    """Return :meth:`Metric.moments` of the metric ``name``; raises InvalidInput where that or the name is wrong."""
    return metric_named(name).moments(baseline_output, output, targets)


def merge_moments(name: str, first: Moments, second: Moments) -> tuple[float, ...]:
    """Return :meth:`Metric.merge` of the metric ``name``: the moments of two disjoint sets of images together."""
    return metric_named(name).merge(first, second)


def change_of(name: str, moments: Moments, confidence: float = 0.95) -> MetricChange:
    """Return :meth:`Metric.change` of the metric ``name``; raises InvalidInput where that or the name is wrong."""
    return metric_named(name).change(moments, confidence)


def divergence_among(names: Collection[str]) -> str | None:
    """Return the first of ``names`` that is a divergence; None if there is none. See :class:`Metric`."""
    return next((name for name in METRICS if name in names and METRICS[name].divergence), None)


def primary_among(names: Collection[str], *, labelled: bool = False) -> str | None:
    """Return the first primary metric of ``names``, with ``labelled`` of those that need labels; None without one."""
    primary = (metric for metric in METRICS.values() if metric.primary and metric.name in names)
    return next((metric.name for metric in primary if metric.needs_labels or not labelled), None)


def judging_among(names: Collection[str], *, otherwise: str = "") -> str:
    """Return the metric of ``names`` that people judge a model by: the primary one, else the divergence.

    Without both it is ``otherwise``, by default the first of ``names``.
    """
    return primary_among(names) or divergence_among(names) or otherwise or next(iter(names))


__all__ = [
    "METRICS",
    "ClassificationMetric",
    "Interval",
    "Metric",
    "MetricChange",
    "Moments",
    "change_of",
    "check_labels",
    "divergence_among",
    "judging_among",
    "merge_moments",
    "metric_named",
    "moments_of",
    "number_text",
    "powers",
    "primary_among",
]
