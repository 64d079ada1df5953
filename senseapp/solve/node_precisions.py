"""Choices of least damage within a time, where a border between int8 and float costs time; nodes of a file in float.

    minimise Σⱼ dⱼ xⱼ   subject to   Σⱼ tⱼ xⱼ + Σₑ cₑ zₑ ≤ T,   zₑ ≥ |y_a − y_b|,   xⱼ ∈ {0, 1}

where y is 0 or 1 for each end of a border e = (a, b): a constant, or the sum of some choices. Where choices have
owners, exactly one of each owner is taken. HiGHS solves it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from senseapp.descriptions.levels import LevelScale
from senseapp.records.deployment import FLOAT, INT8, INT8_BITS, LayerTimes

_ERROR_OF_ALL, _ERROR_OF_ONE = 0.5, 0.08  # of what all nodes in float add, or borders take, and of a node's time


def taken_choices(
    damages: Sequence[float],
    seconds: Sequence[float],
    *,
    ends: Mapping[str, Sequence[int]],
    borders: Mapping[tuple[str, str], float],
    always: str,
    most_seconds: float,
    owners: Sequence[str] = (),
    limit_seconds: float = 20.0,
) -> list[int] | None:
    """Return the places of the choices taken; None where none is quick enough, or none is found in time.

    ``damages`` and ``seconds`` are those of each choice; without any damage, the quickest are taken. The y of an end is
    the sum of the choices in ``ends``, of other ends a constant, 1 if it is called ``always``; ``borders`` are seconds
    by two ends. One choice of each of ``owners`` is taken, any number without.
    """
    count, cost = len(damages), np.array([*seconds, *borders.values()])
    unit, worst = float(np.abs(cost).max(initial=0)) or 1.0, max(map(abs, damages), default=0.0)
    rows = [(0, column, float(value / unit)) for column, value in enumerate(cost)]
    low, high = [-math.inf], [most_seconds / unit * (1 + 1e-9)]
    for number, pair in enumerate(borders):
        for signs in ((1.0, -1.0), (-1.0, 1.0)):  # z ≥ ±(y_a − y_b)
            rows.append((len(low), count + number, 1.0))
            for end, sign in zip(pair, signs, strict=True):
                rows += [(len(low), column, -sign) for column in ends.get(end, ())]
            low.append(sum(sign for end, sign in zip(pair, signs, strict=True) if end not in ends and end == always))
            high.append(math.inf)
    first = {owner: len(low) + place for place, owner in enumerate(dict.fromkeys(owners))}
    rows += [(first[owner], column, 1.0) for column, owner in enumerate(owners)]
    at, columns, values = zip(*rows, strict=True)
    found = milp(
        # among equal damages the quicker choice wins
        np.array([*damages, *[0.0] * len(borders)]) / worst + 1e-6 * cost / unit if worst else cost / unit,
        integrality=(np.arange(len(cost)) < count).astype(int),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(
            coo_array((values, (at, columns)), shape=(len(low) + len(first), len(cost))).tocsr(),
            [*low, *[1.0] * len(first)],
            [*high, *[1.0] * len(first)],
        ),
        options={"time_limit": limit_seconds, "mip_rel_gap": 1e-4},
    )
    return None if found.x is None else np.flatnonzero(found.x[:count] > 0.5).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimes:
    """Predicted seconds of a file by its nodes in float: those of each node, and of all else.

    ``borders`` are seconds of a border by two neighbours, or one and :data:`FLOAT` or :data:`INT8` for what always
    computes so.
    """

    in_int8: Mapping[str, float]
    in_float: Mapping[str, float]
    borders: Mapping[tuple[str, str], float]
    other: float = 0.0

    @classmethod
    def of(cls, times: LayerTimes, nodes: Collection[str], scale: LevelScale) -> Self:
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

    def corrected(self, measured: Mapping[tuple[str, ...], float]) -> Self:
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
        noise = 0.02**2 * np.eye(len(measured))  # of all-int8's time
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
    nodes = list(damages)
    taken = taken_choices(
        [-damages[node] for node in nodes],
        [times.in_float[node] - times.in_int8[node] for node in nodes],
        ends={node: (place,) for place, node in enumerate(nodes)},
        borders=times.borders,
        always=FLOAT,
        most_seconds=most_seconds - times.other - sum(times.in_int8.values()),
        limit_seconds=2.0,
    )
    return None if taken is None else tuple(nodes[place] for place in taken)


def quickest(nodes: Collection[str], times: NodeTimes) -> tuple[str, ...]:
    """Return the nodes in float with which a file is predicted to be quickest."""
    return least_damage(dict.fromkeys(nodes, 0.0), times, math.inf) or ()
