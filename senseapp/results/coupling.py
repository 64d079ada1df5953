"""Which layers shrink together when channels go, and by how much: enough to count a pruned model without pruning it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledAxis:
    """One axis of one layer's weight that shrinks with a group.

    Attributes:
        layer: its name.
        axis: output channels or input channels.
        share: of the axis, that goes when all units of the group go.
    """

    layer: str
    axis: Literal["out", "in"]
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledGroup:
    """One group of coupled channels.

    Attributes:
        layer: its first member, whose pruning ratio holds for the group.
        num_units: channels, sets of channels, or heads; whole ones go.
        axes: everything that shrinks with them.
        other_macs: multiply-accumulates without a weight, for one image, that go when all units go: those of
            attention heads.
    """

    layer: str
    num_units: int
    axes: tuple[CoupledAxis, ...]
    other_macs: int = 0
