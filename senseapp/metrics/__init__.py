"""Metrics: every metric is one object, from which all of its properties are derived.

A new metric is one file with a :class:`Metric`, and its line in :data:`METRICS` or an entry point of that group.
"""

from collections.abc import Collection

from senseapp.core.registry import Registry
from senseapp.metrics.base import Metric, MetricChange, Moments, number_text, powers
from senseapp.metrics.classification import ClassificationMetric, check_labels

_OWN = ("TOP1", "TOP5", "LOSS", "KL", "AGREEMENT", "SQNR")
METRICS: Registry[Metric] = Registry(
    "metric",
    group="senseapp.metrics",
    own=tuple(f"senseapp.metrics.classification:{name}" for name in _OWN),
    filled_by="senseapp.tasks:TASKS",
)
"""All metrics, in the order in which they are shown; those of tasks come with their task."""


def change_of(name: str, moments: Moments, confidence: float = 0.95) -> MetricChange:
    """Return :meth:`Metric.change` of the metric ``name``; raises InvalidInput where that or the name is wrong."""
    return METRICS.named(name).change(moments, confidence)


def divergence_among(names: Collection[str]) -> str | None:
    """Return the first of ``names`` that is a divergence; None if there is none. See :class:`Metric`."""
    return next((name for name in METRICS if name in names and METRICS[name].divergence), None)


def primary_among(names: Collection[str], *, labelled: bool = False) -> str | None:
    """Return the first primary metric of ``names``, with ``labelled`` of those that need labels; None without one."""
    primary = (metric for metric in METRICS.values() if metric.primary and metric.name in names)
    return next((metric.name for metric in primary if metric.needs_labels or not labelled), None)


def judging_among(names: Collection[str], *, otherwise: str = "") -> str:
    """Return what people judge by: the primary metric, the divergence, ``otherwise``, or the first of ``names``."""
    return primary_among(names) or divergence_among(names) or otherwise or next(iter(names))


__all__ = [
    "METRICS",
    "ClassificationMetric",
    "Metric",
    "MetricChange",
    "change_of",
    "check_labels",
    "divergence_among",
    "judging_among",
    "number_text",
    "powers",
    "primary_among",
]
