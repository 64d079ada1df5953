"""Nodes in float that leave least damage in a time: solved by predicted times, which files that are timed correct."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from senseapp.prove.float_screening import Group
from senseapp.solve.node_precisions import NodeTimes, least_damage, quickest

_ROUNDS, _MORE_ROUNDS = 8, 4  # files that are timed, at first and where predictions are corrected already
_CLOSE = 0.985  # of the time that is allowed: a file that takes as much uses it
_LEAST_STEP, _MOST_STEP = 0.002, 0.1  # of the time that is predicted, between files that are aimed at
_MORE_HARM = 1.25  # times the least damage: as much may be chance
_TRIED = 4  # files of those that should do least harm, of which one is to hold the time
_TOO_SLOW = 1.01  # times what is allowed: what a file counts as that a longer timing found too slow
_SHARES = (1.0, 0.75, 0.5, 0.25)  # of the time that nodes in float may add, for which files are looked for
_LEAST_ADDED = 0.1  # of the time that is allowed: what they may add at least, so that shares differ
_HALVINGS = 6  # of the time that nodes in float add


def closest(
    damages: Mapping[str, float],
    times: NodeTimes,
    *,
    time_of: Callable[[Group], float],
    screen: Callable[[Group], float],
    holds_time: Callable[[Group], bool],
    progress: Callable[[str], None],
    has_time: Callable[[], bool] = lambda: True,
    timed: dict[Group, float] | None = None,
) -> Group | None:
    """Return the nodes in float of the file of least damage in a time; None where no file with some keeps to it.

    Of the files that should do least harm in the time (:func:`in_time`), the most promising one is taken that a longer
    timing finds quick enough, too; where none is, files are looked for that should take less.

    Args:
        damages: by node, alone in int8; they should add up.
        times: as predicted.
        time_of: of the file with a group in float, as a multiple of what is allowed.
        screen: returns the damage of that file on few images.
        holds_time: whether a longer timing finds it quick enough.
        progress: is told what is done.
        has_time: whether another share of the time may be tried.
        timed: what ``time_of`` is known to be, with that of no node; gets what is found.
    """
    if not damages:
        return None
    timed = {(): time_of(())} if timed is None else timed
    tried = set[Group]()
    added = max(1 - timed[()], _LEAST_ADDED)
    for share in _SHARES:
        groups = in_time(damages, times, time_of, progress, aim=1 - (1 - share) * added, timed=timed)
        measured = {group: screen(group) for group in groups[:_TRIED] if group not in tried}
        tried.update(measured)
        for group in by_promise(measured, damages):
            progress("Timing the file again")
            if holds_time(group):
                return group
            timed[group] = max(timed[group], _TOO_SLOW)
        if not has_time():
            break
    return None


def fewest(damages: Mapping[str, float], times: NodeTimes, group: Group, is_enough: Callable[[Group], bool]) -> Group:
    """Return the nodes in float of the quickest file that is enough, as ``group`` is."""
    low, high = times(()), times(group)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        solved = least_damage(damages, times, middle)
        if solved is not None and len(solved) < len(damages) and is_enough(solved):
            group, high = solved, middle
        else:
            low = middle
    return group


def in_time(
    damages: Mapping[str, float],
    times: NodeTimes,
    time_of: Callable[[Group], float],
    progress: Callable[[str], None],
    *,
    aim: float,
    timed: dict[Group, float],
) -> list[Group]:
    """Return nodes in float of files that were found quick enough, what should do least damage first.

    A file is solved for a time (:func:`~senseapp.solve.node_precisions.least_damage`) and timed; then predictions are
    corrected by all files so far (:meth:`.NodeTimes.corrected`), as times of single nodes and borders in a network
    differ from those of the same alone, and it is solved again, until a file takes hardly less than that.

    ``aim`` is the share of what is allowed that a file should take; the others are those of :func:`closest`.
    """
    at_first, wanted, low, high = timed[()], aim, 0.0, math.inf
    for _ in range(_MORE_ROUNDS if len(timed) > 1 else _ROUNDS):
        progress("Using the rest of the time for parts in float")
        corrected = times.corrected({group: ratio / at_first for group, ratio in timed.items() if group})
        solved = least_damage(damages, corrected, corrected(()) * wanted / at_first)
        group = _without_all(quickest(damages, corrected) if solved is None else solved, damages)
        if group not in timed:
            timed[group] = time_of(group)
            if _CLOSE * aim <= timed[group] <= aim:
                break
        if solved is not None and timed[group] > aim:
            high = wanted
        else:
            low = wanted
        missed = min(max(aim / timed[group], 1 - _MOST_STEP), 1 + _MOST_STEP)
        wanted = (low + high) / 2 if low and high < math.inf else wanted * missed
        if high - low < _LEAST_STEP:
            break
    return sorted(
        (group for group, ratio in timed.items() if group and ratio <= 1), key=lambda each: _left(each, damages)
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
