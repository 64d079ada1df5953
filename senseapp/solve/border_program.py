"""Choices of least damage within a time, where a border between int8 and float costs time.

    minimise Σⱼ dⱼ xⱼ   subject to   Σⱼ tⱼ xⱼ + Σₑ cₑ zₑ ≤ T,   zₑ ≥ |y_a − y_b|,   xⱼ ∈ {0, 1}

where y is 0 or 1 for each end of a border e = (a, b): a constant, or the sum of some choices. Where choices have
owners, exactly one of each owner is taken. HiGHS solves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


def taken_choices(
    damages: Sequence[float],
    seconds: Sequence[float],
    *,
    ends: Mapping[str, Sequence[int]],
    borders: Mapping[tuple[str, str], float],
    always: str,
    most_seconds: float,
    owners: Sequence[int] = (),
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
