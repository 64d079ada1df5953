"""What people are told about each metric: title, unit, direction, and a loss in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

_DECIMALS = ((10.0, 3), (99.95, 1))
"""Most decimals of numbers below an end; larger ones are whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFacts:
    """How one metric is shown.

    Attributes:
        title: its name in a sentence or as an axis title.
        unit: of ``baseline`` and ``value``; ``%`` means that the stored fraction is shown as percent.
        change_title: what ``delta`` is called (> 0 means worse, for every metric).
        change_unit: of ``delta``; ``points`` means that the stored fraction is shown as percentage points.
        higher_is_better: direction of ``value``.
        needs_labels: whether it can be measured only on labelled images.
        notable: the largest ``delta`` that is tolerable; no layer is called fragile for less.
        summary: one plain sentence of help.
    """

    title: str
    unit: str
    change_title: str
    change_unit: str
    higher_is_better: bool
    needs_labels: bool
    notable: float
    summary: str

    @property
    def factor(self) -> float:
        """Shown units for one unit of ``delta``: 100 for fractions shown in points."""
        return 100.0 if self.change_unit == "points" else 1.0

    @property
    def digits(self) -> int:
        """Decimals of ``delta`` in text."""
        return 1 if self.change_unit == "points" else 3


METRIC_FACTS: dict[str, MetricFacts] = {
    "top1": MetricFacts(
        title="Top-1 accuracy",
        unit="%",
        change_title="Drop in top-1 accuracy",
        change_unit="points",
        higher_is_better=True,
        needs_labels=True,
        notable=0.01,
        summary="The share of images whose highest-scoring class is the right one.",
    ),
    "top5": MetricFacts(
        title="Top-5 accuracy",
        unit="%",
        change_title="Drop in top-5 accuracy",
        change_unit="points",
        higher_is_better=True,
        needs_labels=True,
        notable=0.01,
        summary="The share of images whose right class is among the five highest-scoring ones.",
    ),
    "loss": MetricFacts(
        title="Cross-entropy loss",
        unit="nats",
        change_title="Rise in loss",
        change_unit="nats",
        higher_is_better=False,
        needs_labels=True,
        notable=0.02,
        summary="How surprised the model is by the right class, on average; it moves before accuracy does.",
    ),
    "kl": MetricFacts(
        title="KL divergence",
        unit="nats",
        change_title="KL divergence from the original",
        change_unit="nats",
        higher_is_better=False,
        needs_labels=False,
        notable=0.02,
        summary="How far the class probabilities moved away from those of the original model; needs no labels.",
    ),
    "agreement": MetricFacts(
        title="Agreement",
        unit="%",
        change_title="Images with another answer",
        change_unit="points",
        higher_is_better=True,
        needs_labels=False,
        notable=0.01,
        summary="The share of images that get the same class as from the original model; needs no labels.",
    ),
    "sqnr": MetricFacts(
        title="SQNR of the class scores",
        unit="dB",
        change_title="Noise-to-signal ratio",
        change_unit="",
        higher_is_better=True,
        needs_labels=False,
        notable=0.01,
        summary="How strong the original class scores are beside the error that compression adds; needs no labels.",
    ),
}


def loss_text(metric: str, delta: float) -> str:
    """Return what was lost in the unit of the metric, above zero for the worse: ``6.4 points``, ``< 0.001 nats``."""
    facts = METRIC_FACTS[metric]
    return f"{number_text(facts.factor * delta, digits=facts.digits)} {facts.change_unit}".strip()


def number_text(value: float, *, digits: int) -> str:
    """Return ``value`` with at most so many decimals and a true minus sign; what only rounds to zero says so.

    >>> [number_text(value, digits=3) for value in (0.0, 0.0004, -0.0004, -0.25, 133.0)]
    ['0', '< 0.001', '> −0.001', '−0.250', '133']
    """
    if value == 0:
        return "0"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if round(value, digits) == 0:
        return f"< {10.0**-digits:.{digits}f}" if value > 0 else f"> −{10.0**-digits:.{digits}f}"
    decimals = min(digits, next((most for end, most in _DECIMALS if abs(value) < end), 0))
    return f"{value:.{decimals}f}".replace("-", "−")
