"""Which nodes of a file compute in float: least damage within a time, with damages that add up and costs of borders.

    minimise Σᵢ dᵢ (1 − xᵢ)   subject to   Σᵢ aᵢ xᵢ + Σₑ cₑ zₑ ≤ T,   zₑ ≥ |x_a − x_b|,   xᵢ ∈ {0, 1}

where xᵢ is 1 if node i computes in float, which adds the time aᵢ, and e = (a, b) are neighbours. HiGHS solves it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from senseapp.descriptions.levels import LevelScale
from senseapp.records.deployment import FLOAT, INT8, INT8_BITS, LayerTimes

_TIE = 1e-6  # of the most damage, over the most time: among equal damages the quicker choice wins
_GAP = 1e-3  # of the damage, relative
_SECONDS_LIMIT = 2.0  # of the solver
_ERROR_OF_ALL, _ERROR_OF_ONE = 0.5, 0.08  # of what all nodes in float add, or borders take, and of a node's time
_ERROR_OF_TIMING = 0.02  # of all-int8's time


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimes:
    """Predicted seconds of a file by its nodes in float.

    Attributes:
        in_int8, in_float: seconds of each node.
        borders: by two neighbours, or one and :data:`FLOAT` or :data:`INT8` for what always computes so, the seconds of
            a border between both.
        other: seconds of all else.
    """

    in_int8: Mapping[str, float]
    in_float: Mapping[str, float]
    borders: Mapping[tuple[str, str], float]
    other: float = 0.0

    @classmethod
    def of(cls, times: LayerTimes, nodes: Collection[str], scale: LevelScale) -> NodeTimes:
        """Return those of ``nodes``, which are the layers of ``times``; one without times takes none."""
        known = times.layers()
        in_int8, in_float = (
            {node: times.seconds(node, bits, scale) if node in known else 0.0 for node in nodes}
            for bits in (float(INT8_BITS), scale.untouched)
        )
        borders = {(each.first, each.second): each.seconds for each in times.conversions if each.seconds > 0}
        return cls(in_int8=in_int8, in_float=in_float, borders=borders, other=times.other_seconds)

    def __call__(self, in_float: Collection[str]) -> float:
        """Return the seconds of a call with these nodes in float."""
        return self.other + sum(self.in_int8.values()) + self.added(in_float) + self.crossed(in_float)

    def added(self, in_float: Collection[str]) -> float:
        """Return what nodes in float take longer than in int8, without borders."""
        return sum(self.in_float[node] - self.in_int8[node] for node in self.in_float.keys() & set(in_float))

    def crossed(self, in_float: Collection[str]) -> float:
        """Return the seconds of borders; none where no node computes in int8."""
        inside = self.in_int8.keys() - set(in_float)
        if not inside:
            return 0.0
        inside = {INT8, *inside}
        return sum(seconds for (one, other), seconds in self.borders.items() if (one in inside) != (other in inside))

    def corrected(self, measured: Mapping[tuple[str, ...], float]) -> NodeTimes:
        """Return times that suit ``measured`` better, by as little change as that takes; all-int8's stays.

        Those are times of files by their nodes in float, as multiples of the one without. What all nodes in float add,
        what all borders take, and what each node adds are changed, as much as such predictions err in general (the mean
        of the posterior of a linear model with Gaussian errors).
        """
        if not measured:
            return self
        at_first, crossed, nodes = self(()), self.crossed(()), list(self.in_float)
        own = np.array([(self.in_int8[node] + self.in_float[node]) / 2 for node in nodes])
        inside = np.array([[node in group for node in nodes] for group in measured], np.float64)
        whole = np.array([(self.added(group), self.crossed(group) - crossed) for group in measured])
        errors = np.hstack([_ERROR_OF_ALL * whole, _ERROR_OF_ONE * own * inside]) / at_first
        missing = np.array([ratio - self(group) / at_first for group, ratio in measured.items()])
        noise = _ERROR_OF_TIMING**2 * np.eye(len(measured))
        found = errors.T @ np.linalg.solve(errors @ errors.T + noise, missing)
        longer, dearer = (max(1 + _ERROR_OF_ALL * float(each), 0.0) for each in found[:2])
        added = dict(zip(nodes, (_ERROR_OF_ONE * own * found[2:]).tolist(), strict=True))
        return replace(
            self,
            in_float={
                node: before + longer * (self.in_float[node] - before) + added[node]
                for node, before in self.in_int8.items()
            },
            borders={pair: dearer * seconds for pair, seconds in self.borders.items()},
            other=self.other + crossed * (1 - dearer),
        )


def least_damage(damages: Mapping[str, float], times: NodeTimes, most_seconds: float) -> tuple[str, ...] | None:
    """Return the nodes in float with which all others do least damage, in the order of ``damages``.

    None where no choice is predicted to take at most ``most_seconds``, or the solver finds none in time.
    """
    return _solved(damages, times, most_seconds)


def quickest(nodes: Collection[str], times: NodeTimes) -> tuple[str, ...]:
    """Return the nodes in float with which a file is predicted to be quickest."""
    return _solved(dict.fromkeys(nodes, 0.0), times, math.inf, price=1.0) or ()


def _solved(
    damages: Mapping[str, float], times: NodeTimes, most_seconds: float, *, price: float = _TIE
) -> tuple[str, ...] | None:
    nodes, place = list(damages), {node: index for index, node in enumerate(damages)}
    borders = list(times.borders.items())
    cost = np.array([*(times.in_float[node] - times.in_int8[node] for node in nodes), *(each for _, each in borders)])
    unit, worst = float(np.abs(cost).max(initial=0)) or 1.0, max(damages.values(), default=0.0) or 1.0
    rows = [(0, column, float(value / unit)) for column, value in enumerate(cost)]
    low, high = [-math.inf], [(most_seconds - times.other - sum(times.in_int8.values())) / unit]
    for number, (pair, _) in enumerate(borders):
        for signs in ((1.0, -1.0), (-1.0, 1.0)):  # z ≥ ±(x_a − x_b)
            rows.append((len(low), len(nodes) + number, 1.0))
            rows += [(len(low), place[end], -sign) for end, sign in zip(pair, signs, strict=True) if end in place]
            low.append(sum(sign for end, sign in zip(pair, signs, strict=True) if end == FLOAT))
            high.append(math.inf)
    at, columns, values = zip(*rows, strict=True)
    found = milp(
        np.array([*(-damages[node] / worst for node in nodes), *([0.0] * len(borders))]) + price * cost / unit,
        integrality=np.array([1] * len(nodes) + [0] * len(borders)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(
            coo_array((values, (at, columns)), shape=(len(low), len(cost))).tocsr(), low, high
        ),
        options={"time_limit": _SECONDS_LIMIT, "mip_rel_gap": _GAP},
    )
    if found.x is None:
        return None
    return tuple(node for node, value in zip(nodes, found.x, strict=False) if value > 0.5)
