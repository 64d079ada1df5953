"""One way to treat one layer: what is done, the damage that it is predicted to do, and what it saves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from senseapp.compressions import DENSE_BITS, BudgetKind


def weight_bytes(num_params: float, *, zeros: float = 0.0, bits: float = DENSE_BITS) -> float:
    """Return the bytes that ``num_params`` weights take, ``zeros`` of which are zero.

    They are stored dense, or as one bit per position and the non-zero values, whichever is smaller.
    """
    dense = num_params * bits / 8
    return min(dense, num_params / 8 + (num_params - zeros) * bits / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One compression of a choice: which, to what level (fraction or bits), and its predicted damage."""

    compression: str
    level: float
    damage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What may be done to one layer or coupled group.

    Attributes:
        parts: the compressions applied, in that order; empty leaves the layer alone.
        num_params: its weights before.
        zeros: weights set to zero, which stay in the tensor.
        removed_params: weights removed with their channels.
        removed_macs: multiply-accumulates saved for one image.
        bits: of each weight afterwards.
    """

    num_params: int
    parts: tuple[Part, ...] = ()
    zeros: float = 0.0
    removed_params: float = 0.0
    removed_macs: float = 0.0
    bits: float = DENSE_BITS

    @property
    def damage(self) -> float:
        """Sum over the parts: two compressions of one layer are taken to add up."""
        return sum(part.damage for part in self.parts)

    def saving(self, kind: BudgetKind) -> float:
        """Return what it saves: weights, bytes, MACs, or bits summed over weights."""
        if kind == "params":
            return self.zeros + self.removed_params
        if kind == "macs":
            return self.removed_macs
        if kind == "bits":
            return self.num_params * (DENSE_BITS - self.bits)
        kept = self.num_params - self.removed_params
        return weight_bytes(self.num_params) - weight_bytes(kept, zeros=self.zeros, bits=self.bits)

    def beside(self, other: Choice) -> Choice:
        """Return this choice and ``other`` for the same layer together; their damage adds up."""
        return replace(
            self,
            parts=(*self.parts, *other.parts),
            zeros=max(self.zeros, other.zeros),
            removed_macs=max(self.removed_macs, other.removed_macs),
            bits=min(self.bits, other.bits),
        )
