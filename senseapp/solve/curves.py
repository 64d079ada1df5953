"""Damage and savings of one layer by level, cleaned for a solver, and joint savings of all layers' choices."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Self, get_args

import numpy as np

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions import DENSE_BITS, BudgetKind, CompressionDescription, LevelScale, get
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import ResourceBudget


def weight_bytes(num_params: float, *, zeros: float = 0.0, bits: float = DENSE_BITS) -> float:
    """Return the bytes of ``num_params`` weights, ``zeros`` of which are zero.

    They are stored dense, or as one bit per position and the non-zero values, whichever is smaller.
    """
    return min(num_params * bits / 8, num_params / 8 + (num_params - zeros) * bits / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One compression of a choice: its kind, level (fraction or bits) and predicted damage."""

    compression: str
    level: float
    damage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One option for a layer or coupled group of ``num_params`` weights, which have ``bits`` afterwards.

    ``parts`` are the compressions, in order of application; empty leaves the layer unchanged. ``zeros`` stay in the
    tensor, ``removed_params`` go with their channels. ``removed_macs`` are of one image.
    """

    num_params: int
    parts: tuple[Part, ...] = ()
    zeros: float = 0.0
    removed_params: float = 0.0
    removed_macs: float = 0.0
    bits: float = DENSE_BITS

    @property
    def damage(self) -> float:
        """Sum over the parts: two compressions of one layer are assumed to add up."""
        return sum(part.damage for part in self.parts)

    def saving(self, kind: BudgetKind) -> float:
        """Return its saving: weights, bytes, MACs, or bits summed over weights."""
        if kind == "params":
            return self.zeros + self.removed_params
        if kind == "macs":
            return self.removed_macs
        if kind == "bits":
            return self.num_params * (DENSE_BITS - self.bits)
        kept = self.num_params - self.removed_params
        return weight_bytes(self.num_params) - weight_bytes(kept, zeros=self.zeros, bits=self.bits)

    def combined_with(self, other: Self) -> Self:
        """Return this choice combined with ``other`` for the same layer; their damage adds up."""
        return replace(
            self,
            parts=(*self.parts, *other.parts),
            zeros=max(self.zeros, other.zeros),
            removed_macs=max(self.removed_macs, other.removed_macs),
            bits=min(self.bits, other.bits),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One measured level: its damage, and the weights and MACs that it removes."""

    level: float
    damage: float
    removed_params: float = 0.0
    removed_macs: float = 0.0


_NOTHING = CurvePoint(level=0.0, damage=0.0)


def cleaned(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Make damage non-negative and non-decreasing, from the gentlest point to the most aggressive.

    Negative damage is noise and counts as 0; a decrease is noise too, and is replaced by the running maximum.
    """
    worst = accumulate((max(0.0, point.damage) for point in points), max)
    return tuple(replace(point, damage=damage) for point, damage in zip(points, worst, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCurve:
    """Damage and savings of one layer (or coupled group, named by its first member) by level.

    All ``members`` share the choice, and have ``num_params`` weights together. ``points`` are measured levels, from the
    gentlest to the most aggressive; damage finite, >= 0 and non-decreasing. Levels in between can be chosen if
    ``continuous`` (not for 2:4 and fp8).
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
        """Scale of its levels."""
        return self.description.scale

    @property
    def strongest(self) -> float:
        """The most aggressive level with a finite measurement."""
        return self.points[-1].level

    def grid(self) -> tuple[float, ...]:
        """Return the candidate levels, gentlest first, with the untouched one."""
        return self.scale.grid(self.measured) if self.continuous else (self.scale.untouched, *self.measured)

    @property
    def measured(self) -> tuple[float, ...]:
        """The measured levels, gentlest first."""
        return tuple(point.level for point in self.points)

    def choices(self, levels: Sequence[float]) -> tuple[Choice, ...]:
        """Return the choice of each level; damage and savings between measured levels are interpolated.

        Savings are linear in the level; for damage see :meth:`~senseapp.compressions.LevelScale.damage`.
        """
        known = np.array([[point.damage for point in self.points]])
        damages = self.scale.damage(self.measured, known, levels)[0].tolist()
        compression = self.description
        return tuple(
            self._choice_with(compression, level, damage) for level, damage in zip(levels, damages, strict=True)
        )

    def choice(self, level: float) -> Choice:
        """Return the choice of one level; see :meth:`choices`."""
        return self.choices([level])[0]

    def saving(self, level: float, kind: BudgetKind) -> float:
        """Return the saving of ``level``, without predicting its damage."""
        return self._choice_with(self.description, level, 0.0).saving(kind)

    def _choice_with(self, compression: CompressionDescription, level: float, damage: float) -> Choice:
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
        """Interpolate removed weights and MACs; beyond the last measurement, extrapolate with the slope from zero."""
        gentler, stronger = _NOTHING, self.points[0]
        for point in self.points[1:]:
            if level <= stronger.level:
                break
            gentler, stronger = stronger, point
        if level > stronger.level:
            gentler = _NOTHING
        share = (level - gentler.level) / (stronger.level - gentler.level)
        return (
            gentler.removed_params + share * (stronger.removed_params - gentler.removed_params),
            gentler.removed_macs + share * (stronger.removed_macs - gentler.removed_macs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Totals of a model, measured or not: weights of all its compressible layers, MACs of the whole.

    Savings of two neighbouring pruned layers overlap: both count the weights between them. If every weight were touched
    by ``coverage`` groups on average, from 1 (no overlap) to 2 by budget kind, and all groups pruned alike, single
    savings that add up to the fraction S would together save S − (coverage − 1)(S / coverage)². That estimate is used
    for pruning; only applying the schedule gives the exact figure. For other compressions savings add up exactly. No
    compression of layers saves ``other_macs``, those outside of layers.
    """

    num_params: int
    macs: int
    other_macs: int = 0
    coverage: dict[BudgetKind, float] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: ModelProfile, curves: Sequence[LayerCurve]) -> Self:
        """Take totals from ``profile`` and, for pruning, the overlap from the gentlest point of each curve."""
        num_params = sum(layer.num_params for layer in profile.layers)
        other_macs = max(0, profile.macs - profile.layer_macs)
        totals = cls(num_params=num_params, macs=profile.macs, other_macs=other_macs)
        if not curves or not curves[0].description.removes_channels:
            return totals
        coverage = {kind: totals._coverage(kind, curves) for kind in curves[0].description.budgets}
        return replace(totals, coverage=coverage)

    def total(self, kind: BudgetKind) -> float:
        """Return the total that fractions of ``kind`` refer to; for bits, 32 per weight."""
        if kind == "macs":
            return float(self.macs)
        if kind == "bytes":
            return weight_bytes(self.num_params)
        return self.num_params * (DENSE_BITS if kind == "bits" else 1.0)

    def required(self, budget: ResourceBudget) -> float:
        """Return the summed saving of single choices that meets ``budget``."""
        if budget.kind == "bits":
            return self.num_params * (DENSE_BITS - budget.target)
        bend = self._bend(budget.kind)
        removed = budget.target * self.total(budget.kind)
        if bend == 0:
            return removed
        layers = self._layers_total(budget.kind)
        return layers * (1 - math.sqrt(max(0.0, 1 - 4 * bend * removed / layers))) / (2 * bend)

    def figure(self, kind: BudgetKind, saving: float) -> float:
        """Return ``saving`` in the unit of the budget: the fraction removed, or the average bits."""
        if kind == "bits":
            return DENSE_BITS - saving / self.num_params
        layers = self._layers_total(kind)
        if not layers:
            return 0.0
        share = saving / layers
        return (share - self._bend(kind) * share**2) * layers / self.total(kind)

    def figures(self, choices: Iterable[Choice]) -> dict[str, float]:
        """Return the figure of every budget kind for these choices together."""
        chosen = list(choices)
        kinds: tuple[BudgetKind, ...] = get_args(BudgetKind)
        return {kind: self.figure(kind, sum(choice.saving(kind) for choice in chosen)) for kind in kinds}

    def _layers_total(self, kind: BudgetKind) -> float:
        """Return the total of all layers, to which overlaps refer."""
        return self.total(kind) - (self.other_macs if kind == "macs" else 0)

    def _bend(self, kind: BudgetKind) -> float:
        coverage = self.coverage.get(kind, 1.0)
        return (coverage - 1) / coverage**2

    def _coverage(self, kind: BudgetKind, curves: Sequence[LayerCurve]) -> float:
        gentlest = [curve.points[0].level for curve in curves]
        slopes = [curve.saving(level, kind) / level for curve, level in zip(curves, gentlest, strict=True)]
        total = self._layers_total(kind)
        return min(2.0, max(1.0, sum(slopes) / total)) if total else 1.0


def check_kind(kind: BudgetKind, compressions: Iterable[str]) -> None:
    """Raise InvalidSpec, with the possible budgets, unless one of ``compressions`` saves what ``kind`` counts."""
    named = list(compressions)
    possible = sorted({each for compression in named for each in get(compression).budgets})
    if kind not in possible:
        raise InvalidSpec(
            f"{' and '.join(named).capitalize()} cannot serve a {kind} budget; choose {' or '.join(possible)}."
        )
