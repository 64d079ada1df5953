"""Nodes in float that leave least damage in a time: solved by predicted times, which files that are timed correct."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from senseapp.solve.node_precisions import NodeTimes, least_damage, quickest

_ROUNDS = 8  # files that are timed
_CLOSE = 0.985  # of the time that is allowed: a file that takes as much uses it
_STEP = 0.02  # of the time, by which another file is aimed at, at least
_MORE_HARM = 1.25  # times the least damage: as much may be chance

Group = tuple[str, ...]
"""Names of nodes."""


def in_time(
    damages: Mapping[str, float],
    times: NodeTimes,
    time_of: Callable[[Group], float],
    progress: Callable[[str], None],
    *,
    most: float = 1.0,
) -> list[Group]:
    """Return nodes in float of files that were found quick enough, what should do least damage first.

    A file is solved for the time that is allowed (:func:`~senseapp.solve.node_precisions.least_damage`) and timed; then
    predictions are corrected by all files so far (:meth:`.NodeTimes.corrected`), as that of single nodes and borders in
    a network differ from those of the same alone, and it is solved again, until a file takes hardly less than allowed.

    Args:
        damages: by node, alone in int8; they should add up.
        times: as predicted.
        time_of: of the file with a group in float.
        progress: is told what is done.
        most: the time that is allowed.
    """
    if not damages:
        return []
    at_first, wanted = time_of(()), most
    measured: dict[Group, float] = {}
    for _ in range(_ROUNDS):
        progress("Using the rest of the time for parts in float")
        corrected = times.corrected({group: ratio / at_first for group, ratio in measured.items()})
        solved = least_damage(damages, corrected, corrected(()) * wanted / at_first)
        group = _without_all(quickest(damages, corrected) if solved is None else solved, damages)
        if not group or (solved is None and group in measured):
            break
        if group not in measured:
            measured[group] = time_of(group)
            if _CLOSE * most <= measured[group] <= most:
                break
        else:  # predicted to take what is wanted
            missed = most / measured[group]
            wanted *= max(missed, 1 + _STEP) if missed >= 1 else min(missed, 1 - _STEP)
    return sorted(
        (group for group, ratio in measured.items() if ratio <= most), key=lambda group: _left(group, damages)
    )


def by_promise(measured: Mapping[Group, float], damages: Mapping[str, float]) -> list[Group]:
    """Return groups in float by what the other nodes do alone in int8, and after them those that do clearly more harm.

    Args:
        measured: by group, the damage of its file on few images, which tells less than these sums where it hardly
            differs.
        damages: by node, alone in int8.
    """
    most = _MORE_HARM * min(measured.values(), default=0.0)
    return sorted(measured, key=lambda group: (max(measured[group] - most, 0.0), _left(group, damages)))


def _left(group: Group, damages: Mapping[str, float]) -> float:
    return sum(damage for node, damage in damages.items() if node not in group)


def _without_all(group: Group, damages: Mapping[str, float]) -> Group:
    """Return a group without the least harmful node where it is all nodes, as one stays in int8."""
    if len(group) < len(damages):
        return group
    least = min(damages, key=damages.__getitem__)
    return tuple(node for node in group if node != least)
