"""The multiple-choice knapsack: one choice per layer, least summed damage, at least the required saving.

    minimise Σᵢⱼ dᵢⱼ xᵢⱼ   subject to   Σᵢⱼ sᵢⱼ xᵢⱼ ≥ R,   Σⱼ xᵢⱼ = 1,   xᵢⱼ ∈ {0, 1}

A price on saving decouples the layers (Lagrangian relaxation): it gives a lower bound and a first schedule, which is
taken where it is close to the bound. Else choices that no better schedule can contain are discarded by that bound
(Pisinger, "A minimal algorithm for the multiple-choice knapsack problem", 1995, §3), and HiGHS chooses among the
others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from senseapp.core.errors import InfeasibleBudget

_GAP = 2e-3  # relative, between the damage found and the least possible
_EXACT = 300  # choices, up to which the least possible is found
_FINE = 1e4  # HiGHS's tolerances are absolute, 1e-6
_NODES = 1000  # of the search tree, which ends a search alike on any machine
_SECONDS = 20.0  # in which that many take less

Vector = NDArray[np.float64]
Positions = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """All choices of all layers concatenated, (N,); a solution is one position in that row per layer."""

    cost: Vector
    saving: Vector
    owner: Positions
    start: Positions

    def least(self, score: Vector) -> Vector:
        """Return the least ``score`` of each layer."""
        return np.minimum.reduceat(score, self.start)

    def cheapest(self, score: Vector) -> Positions:
        """Return each layer's choice of least ``score``, the first of equals."""
        best = np.flatnonzero(score == self.least(score)[self.owner])
        return best[np.searchsorted(self.owner[best], np.arange(len(self.start)))]


def solve(damages: Sequence[Vector], savings: Sequence[Vector], required: float) -> list[int]:
    """Return the index of the best choice of each layer.

    ``damages`` are finite and >= 0, those of each layer (J_i,), gentlest choice first; ``savings`` are those of the
    same choices, whose sum over layers must be at least ``required``.

    Raises InfeasibleBudget if even the greatest savings fall short; ``nearest`` is their sum.
    """
    possible = float(sum(saving.max() for saving in savings))
    required -= 1e-9 * possible  # the last bit of a sum must not make a budget infeasible
    if possible < required:
        raise InfeasibleBudget(f"At most {possible:g} can be saved, {required:g} was asked for.", nearest=possible)
    sizes = [len(damage) for damage in damages]
    choices = _Choices(
        cost=np.concatenate(damages),
        saving=np.concatenate(savings),
        owner=np.repeat(np.arange(len(sizes)), sizes),
        start=np.cumsum([0, *sizes[:-1]]),
    )
    chosen = choices.cheapest(choices.cost)
    if choices.saving[chosen].sum() < required:
        chosen = _constrained(choices, required)
    indices: list[int] = (chosen - choices.start).tolist()
    return indices


def _constrained(raw: _Choices, required: float) -> Positions:
    """Solve if the least damaging choices do not save enough; both axes are scaled, ties are broken."""
    spread = float(np.ptp(raw.saving))
    damage = float(raw.cost.max()) or 1.0  # without any damage, the gentler choices cost less
    choices = _Choices(
        cost=raw.cost / damage + 1e-12 / spread * raw.saving,  # among equal damages the gentler choice wins
        saving=raw.saving / spread,
        owner=raw.owner,
        start=raw.start,
    )
    required /= spread
    price, incumbent = _price(choices, required)
    for lower in (1 - 1e-9, 0.95, 0.8, 0.5, 0.0):
        milder = choices.cheapest(choices.cost - lower * price * choices.saving)
        incumbent = _refilled(choices, incumbent, milder, required)
    reduced = choices.cost - price * choices.saving
    least, reach = choices.least(reduced), float(choices.cost[incumbent].sum())
    gap = max(0.0, reach - (float(least.sum()) + price * required))  # not negative after rounding
    tolerance = 0.0 if len(choices.cost) <= _EXACT else _GAP
    if gap <= tolerance * reach:
        return incumbent
    kept = np.flatnonzero(reduced - least[choices.owner] <= gap * (1 + 1e-9))
    found = _searched(choices, kept, required, tolerance)
    return incumbent if found is None or choices.cost[found].sum() > reach else found


def _price(choices: _Choices, required: float) -> tuple[float, Positions]:
    """Return the price of saving at which the cheapest choices just save ``required``, and these choices."""

    def chosen(price: float) -> Positions:
        return choices.cheapest(choices.cost - price * choices.saving)

    low, high = 0.0, 1e-6
    while choices.saving[incumbent := chosen(high)].sum() < required:
        low, high = high, 4 * high
    for _ in range(50):  # halvings: to float precision
        middle = 0.5 * (low + high)
        candidate = chosen(middle)
        if choices.saving[candidate].sum() < required:
            low = middle
        else:
            high, incumbent = middle, candidate
    return high, incumbent


def _refilled(choices: _Choices, chosen: Positions, short: Positions, required: float) -> Positions:
    """Return ``chosen`` with layers set back to ``short``, largest savings first, while the total saves enough."""
    lost = choices.saving[chosen] - choices.saving[short]
    spare = float(choices.saving[chosen].sum()) - required
    refilled = chosen.copy()
    for layer in np.argsort(-lost, kind="stable"):
        if 0 < lost[layer] <= spare:
            refilled[layer] = short[layer]
            spare -= float(lost[layer])
    return refilled


def _searched(choices: _Choices, kept: Positions, required: float, tolerance: float) -> Positions | None:
    """Return the choices of least cost among ``kept``, to a relative ``tolerance``; None where none is found."""
    owner, layers = choices.owner[kept], len(choices.start)
    one_each = coo_array((np.ones(len(kept)), (owner, np.arange(len(kept)))), shape=(layers, len(kept)))
    found = milp(
        _FINE * choices.cost[kept],
        integrality=np.ones(len(kept), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each.tocsr(), 1, 1),
            LinearConstraint(_FINE * choices.saving[kept][None], _FINE * required, np.inf),
        ],
        options={"mip_rel_gap": tolerance, "node_limit": _NODES, "time_limit": _SECONDS},
    )
    if found.x is None:
        return None
    taken: Positions = kept[found.x > 0.5]
    return taken if (len(taken) == layers and choices.saving[taken].sum() >= required) else None
