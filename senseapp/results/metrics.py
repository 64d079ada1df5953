"""What people are told about each metric: title, unit, direction."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["METRIC_FACTS", "MetricFacts"]


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
        summary: one plain sentence of help.
    """

    title: str
    unit: str
    change_title: str
    change_unit: str
    higher_is_better: bool
    needs_labels: bool
    summary: str


METRIC_FACTS: dict[str, MetricFacts] = {
    "top1": MetricFacts(
        title="Top-1 accuracy",
        unit="%",
        change_title="Drop in top-1 accuracy",
        change_unit="points",
        higher_is_better=True,
        needs_labels=True,
        summary="The share of images whose highest-scoring class is the right one.",
    ),
    "top5": MetricFacts(
        title="Top-5 accuracy",
        unit="%",
        change_title="Drop in top-5 accuracy",
        change_unit="points",
        higher_is_better=True,
        needs_labels=True,
        summary="The share of images whose right class is among the five highest-scoring ones.",
    ),
    "loss": MetricFacts(
        title="Cross-entropy loss",
        unit="nats",
        change_title="Rise in loss",
        change_unit="nats",
        higher_is_better=False,
        needs_labels=True,
        summary="How surprised the model is by the right class, on average; it moves before accuracy does.",
    ),
    "kl": MetricFacts(
        title="KL divergence",
        unit="nats",
        change_title="KL divergence from the original",
        change_unit="nats",
        higher_is_better=False,
        needs_labels=False,
        summary="How far the class probabilities moved away from those of the original model; needs no labels.",
    ),
    "agreement": MetricFacts(
        title="Agreement",
        unit="%",
        change_title="Images with another answer",
        change_unit="points",
        higher_is_better=True,
        needs_labels=False,
        summary="The share of images that get the same class as from the original model; needs no labels.",
    ),
    "sqnr": MetricFacts(
        title="SQNR of the class scores",
        unit="dB",
        change_title="Noise-to-signal ratio",
        change_unit="",
        higher_is_better=True,
        needs_labels=False,
        summary="How strong the original class scores are beside the error that compression adds; needs no labels.",
    ),
}
