"""One measurement: what compressing one layer (or coupled group) to one level does to every metric."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from senseapp.metrics import METRICS, MetricChange
from senseapp.spec.codec import register


class Status(enum.StrEnum):
    """How a measurement ended."""

    MEASURED = "measured"
    NOT_APPLICABLE = "not_applicable"
    FAILED = "failed"


def change_in(changes: Iterable[MetricChange], metric: str) -> MetricChange | None:
    """Return the change of ``metric``; None if it was not measured."""
    return next((change for change in changes if change.metric == metric), None)


def loss_with_interval(change: MetricChange) -> str:
    """Return what was lost and its 95 % interval: ``6.4 points (5.0 points to 7.9 points)``."""
    text = METRICS[change.metric].change_text
    return f"{text(change.delta)} ({text(change.ci_low)} to {text(change.ci_high)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasurement:
    """The effect of one level on one layer, or on one coupled group that can only be compressed together.

    Attributes:
        layer: the layer, or the first member of its group in execution order.
        level: fraction (sparsity, pruning) or bits (quantization) that was asked for.
        status: measured, not applicable (with the reason), or failed (with the reason).
        changes: one entry per metric; empty unless measured.
        estimated: True if the quick scan predicted the changes from one backward pass.
        images_passed: of an estimate, on how many images a true pass corrected it; 0 where none did.
        group: id of the coupled group; empty if the layer stands alone.
        members: layers of the group, the first one included; just the layer if it stands alone.
        achieved_level: the level truly reached (channels are whole numbers).
        removed_params: weights zeroed or removed, over all members.
        removed_macs: multiply-accumulates that a kernel skipping them would save, for one image.
        seconds: time spent on it.
        reason: one sentence if it was not applicable or failed.
    """

    layer: str
    level: float
    status: Status
    changes: tuple[MetricChange, ...] = ()
    estimated: bool = False
    images_passed: int = 0
    group: str = ""
    members: tuple[str, ...] = ()
    achieved_level: float = 0.0
    removed_params: int = 0
    removed_macs: int = 0
    seconds: float = 0.0
    reason: str = ""

    @property
    def key(self) -> tuple[str, float]:
        """What it measures; a later measurement with the same key replaces an earlier one."""
        return self.layer, self.level

    def change(self, metric: str) -> MetricChange | None:
        """Return the change of ``metric``, or None if it was not measured."""
        return change_in(self.changes, metric)


register(LayerMeasurement)
