"""Exact search for the multiple-choice knapsack when a bound has left few choices.

Layers are added one after the other; of all partial schedules only those are kept that no other one beats in both
cost and saving (dynamic programming over the Pareto front), that can still save enough, and that can still end below
the best known cost. Source: Kellerer, Pferschy, Pisinger, "Knapsack Problems", 2004, §11.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOST_PARTIAL = 5_000  # partial schedules kept; more means that the problem is not small

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """Partial schedules: their cost and saving, which schedule each came from, and which choice was added."""

    cost: Vector
    saving: Vector
    parent: Indices
    choice: Indices

    def of(self, kept: NDArray[np.bool_] | Indices) -> _Front:
        return _Front(
            cost=self.cost[kept], saving=self.saving[kept], parent=self.parent[kept], choice=self.choice[kept]
        )


def pareto_search(
    costs: list[Vector], savings: list[Vector], required: float, *, price: float, below: float
) -> list[int] | None:
    """Return the choice of each layer of least cost that saves ``required``; None if the problem is not small.

    Args:
        costs: of the choices of each layer, each (J_i,).
        savings: of the same choices.
        required: what all layers together must save at least.
        price: of one unit of saving, for the bound; any value >= 0 is valid, a good one makes the search short.
        below: cost of a known schedule; dearer ones are not followed.
    """
    reduced = [float((cost - price * saving).min()) for cost, saving in zip(costs, savings, strict=True)]
    rest_bound = np.append(np.cumsum(reduced[::-1])[::-1], 0.0)
    rest_saving = np.append(np.cumsum([float(saving.max()) for saving in savings[::-1]])[::-1], 0.0)
    ceiling = below + 1e-9 * abs(below)
    start = np.zeros(1)
    fronts = [_Front(cost=start, saving=start, parent=start.astype(np.intp), choice=start.astype(np.intp))]
    for layer, (cost, saving) in enumerate(zip(costs, savings, strict=True)):
        grown = _grown(fronts[-1], cost, saving)
        lowest = grown.cost + rest_bound[layer + 1] + price * (required - grown.saving)
        hopeful = (grown.saving + rest_saving[layer + 1] >= required) & (lowest <= ceiling)
        front = _undominated(grown.of(hopeful))
        if not 0 < len(front.cost) <= _MOST_PARTIAL:
            return None
        fronts.append(front)
    return _traced(fronts, int(np.argmin(fronts[-1].cost)))


def _grown(front: _Front, cost: Vector, saving: Vector) -> _Front:
    """Return every partial schedule with every choice of the next layer."""
    parent, choice = np.divmod(np.arange(len(front.cost) * len(cost)), len(cost))
    return _Front(
        cost=front.cost[parent] + cost[choice],
        saving=front.saving[parent] + saving[choice],
        parent=parent,
        choice=choice,
    )


def _undominated(front: _Front) -> _Front:
    """Keep the schedules that cost less than every schedule saving as much or more."""
    ordered = front.of(np.lexsort((front.cost, -front.saving)))
    cheaper = np.append(np.inf, np.minimum.accumulate(ordered.cost)[:-1])
    return ordered.of(ordered.cost < cheaper)


def _traced(fronts: list[_Front], last: int) -> list[int]:
    chosen = []
    for front in reversed(fronts[1:]):
        chosen.append(int(front.choice[last]))
        last = int(front.parent[last])
    return chosen[::-1]
