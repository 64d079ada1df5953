"""From a budget to what the choices must save together, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from senseapp.compressions import DENSE_BITS, BudgetKind, get
from senseapp.core.errors import InvalidSpec
from senseapp.records.measurement import LayerMeasurement, SensitivityResult
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import ResourceBudget
from senseapp.schedules.curves import Choice, LayerCurve, weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Totals of a model, measured or not: weights of all its compressible layers, MACs of the whole.

    Removing channels from two neighbouring layers overlaps: the weights between them are counted by both. If every
    weight were touched by ``coverage`` groups on average, and all groups pruned alike, single savings that add up to
    the fraction S would together save S − (coverage − 1)(S / coverage)². That estimate is used where channels go; only
    applying the schedule gives the exact figure. For other compressions savings add up exactly.

    Attributes:
        other_macs: how many of the MACs no layer does; no compression of layers saves them.
        coverage: by budget kind, from 1 (no overlap) to 2.
    """

    num_params: int
    macs: int
    other_macs: int = 0
    coverage: dict[BudgetKind, float] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: ModelProfile, curves: Sequence[LayerCurve]) -> Accounting:
        """Take totals from ``profile`` and, where channels go, the overlap from the gentlest point of each curve."""
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
        """Return what ``saving`` means in the unit of the budget: the fraction removed, or the average bits."""
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
        """Return what all layers have together, which is what overlaps are shares of."""
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
    """Raise InvalidSpec, with the budgets there are, unless one of ``compressions`` can save what ``kind`` counts."""
    named = list(compressions)
    possible = sorted({each for compression in named for each in get(compression).budgets})
    if kind not in possible:
        raise InvalidSpec(
            f"{' and '.join(named).capitalize()} cannot serve a {kind} budget; choose {' or '.join(possible)}."
        )


EQUAL_SIZES_NOTE = (
    "The sizes of the layers are unknown, so every layer counts alike: what is removed is a mean over layers, not a "
    "share of the weights."
)
_NOMINAL = 1_000_000  # weights and MACs per layer; divisible enough that no level is rounded


def with_equal_sizes(result: SensitivityResult) -> SensitivityResult:
    """Return ``result`` with the same nominal size for every layer, where their sizes are unknown.

    Shares of the total are then means over layers, which is all that can be said of an imported table.
    """
    if result.profile.sizes_known:
        return result
    layers = tuple(replace(layer, num_params=_NOMINAL, macs=_NOMINAL) for layer in result.profile.layers)
    total = _NOMINAL * len(layers)

    def sized(item: LayerMeasurement) -> LayerMeasurement:
        removed = round(_NOMINAL * item.level)
        return replace(item, removed_params=removed, removed_macs=removed)

    return replace(
        result,
        profile=replace(result.profile, layers=layers, num_params=total, macs=total),
        measurements=tuple(map(sized, result.measurements)),
        estimates=tuple(map(sized, result.estimates)),
    )
