"""How much damage each node of an int8 file does alone in int8, found by halving groups of neighbours.

All other nodes are in float: beside all others in int8, whose damage varies with every change of the file, small shares
of it can't be told apart on few images. Damages of nodes alone in int8 hardly vary, and add up to about that of all
(seen on EfficientNet-Lite0 and ConvNeXt, where nodes ranked so and put in float left a half to a seventh).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from senseapp.core.texts import plural

_LITTLE = 0.02  # of the damage of all: a group that does no more is not halved

Group = tuple[str, ...]
"""Names of nodes."""


def damages_alone(
    nodes: Sequence[str],
    damage_of: Callable[[Group], float],
    progress: Callable[[str], None],
    *,
    has_time: Callable[[], bool],
) -> dict[str, float]:
    """Return the damage of each of ``nodes``; those that do little get an equal share of that of their neighbours.

    The most harmful group is halved until no group of several nodes does more than a small share of all damage, so that
    a network of hundreds of nodes takes about a hundred files.

    Args:
        nodes: at least one, in the order of the network.
        damage_of: that of the file with only this group in int8, on few images.
        progress: is told what is done.
        has_time: whether to halve another group.
    """
    exact, every = damage_of(()), tuple(nodes)
    found = {every: damage_of(every) - exact}
    while has_time():
        group = max((each for each in found if len(each) > 1), key=found.__getitem__, default=())
        if not group or found[group] <= _LITTLE * sum(found.values()):
            break
        progress(f"Measuring parts in int8 · {plural(len(found), 'group')} of {len(every)} parts")
        del found[group]
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            found[half] = damage_of(half) - exact
    shares = {node: damage / len(group) for group, damage in found.items() for node in group}
    return {node: shares[node] for node in nodes}
