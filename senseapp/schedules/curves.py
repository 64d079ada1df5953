"""Damage and savings of one layer over the levels of one compression, cleaned for a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from senseapp.compressions import DENSE_BITS, BudgetKind, CompressionDescription, LevelScale, get


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
    """What may be done to one layer or coupled group of ``num_params`` weights.

    Attributes:
        parts: the compressions applied, in that order; empty leaves the layer alone.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One measured level: its damage, and the weights and MACs it takes away."""

    level: float
    damage: float
    removed_params: float = 0.0
    removed_macs: float = 0.0


def cleaned(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Make damage non-negative and never falling, from the gentlest point to the most aggressive.

    Negative damage is noise and counts as none; a fall is noise too, and the running maximum stands in its place.
    """
    worst = 0.0
    result = []
    for point in points:
        worst = max(worst, point.damage)
        result.append(replace(point, damage=worst))
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCurve:
    """What one layer (or coupled group, called by its first member) suffers and saves, by level.

    Attributes:
        members: all layers that the choice holds for.
        num_params: weights of all members.
        points: measured levels, from the gentlest to the most aggressive; damage finite, >= 0 and never falling.
        continuous: whether levels between the measured ones can be chosen (not for 2:4 and fp8).
    """

    layer: str
    members: tuple[str, ...]
    compression: str
    num_params: int
    points: tuple[CurvePoint, ...]
    continuous: bool = True

    @property
    def description(self) -> CompressionDescription:
        """The compression."""
        return get(self.compression)

    @property
    def scale(self) -> LevelScale:
        """Of its levels."""
        return self.description.scale

    @property
    def strongest(self) -> float:
        """The most aggressive level with a finite measurement."""
        return self.points[-1].level

    def grid(self) -> tuple[float, ...]:
        """Return levels to choose from, gentlest first, the untouched one included."""
        measured = [point.level for point in self.points]
        return self.scale.grid(measured) if self.continuous else (self.scale.untouched, *measured)

    def choices(self, levels: Sequence[float]) -> tuple[Choice, ...]:
        """Return the choice of each level; damage and savings between measured levels are interpolated.

        Savings are linear in the level; for damage see :meth:`~senseapp.compressions.LevelScale.damage`.
        """
        damages = self.scale.damage(tuple((point.level, point.damage) for point in self.points), levels).tolist()
        return tuple(self._choice(level, damage) for level, damage in zip(levels, damages, strict=True))

    def choice(self, level: float) -> Choice:
        """Return the choice of one level; see :meth:`choices`."""
        return self.choices([level])[0]

    def saving(self, level: float, kind: BudgetKind) -> float:
        """Return what ``level`` saves, without the work of predicting its damage."""
        return self._choice(level, 0.0).saving(kind)

    def _choice(self, level: float, damage: float) -> Choice:
        compression = self.description
        if level == compression.scale.untouched:
            return Choice(num_params=self.num_params)
        part = Part(compression=self.compression, level=level, damage=damage)
        if compression.sets_bits:
            return Choice(num_params=self.num_params, parts=(part,), bits=level)
        removed_params, removed_macs = self._removed(level)
        return Choice(
            num_params=self.num_params,
            parts=(part,),
            zeros=removed_params if compression.zeroes_weights else 0.0,
            removed_params=removed_params if compression.removes_channels else 0.0,
            removed_macs=removed_macs,
        )

    def _removed(self, level: float) -> tuple[float, float]:
        """Interpolate the weights and MACs removed; beyond the last measurement they go on at the slope from zero."""
        gentler, stronger = CurvePoint(level=0.0, damage=0.0), self.points[0]
        for point in self.points[1:]:
            if level <= stronger.level:
                break
            gentler, stronger = stronger, point
        if level > stronger.level:
            gentler = CurvePoint(level=0.0, damage=0.0)
        share = (level - gentler.level) / (stronger.level - gentler.level)
        return (
            gentler.removed_params + share * (stronger.removed_params - gentler.removed_params),
            gentler.removed_macs + share * (stronger.removed_macs - gentler.removed_macs),
        )
