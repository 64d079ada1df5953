"""Of the int8 files that a search went through, the one of least damage that takes no longer than another file."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, partial

from senseapp.prove.file_times import FileTimes
from senseapp.prove.float_nodes import Mixed, first_quick
from senseapp.prove.whole_weights import with_whole_weights

_TRIED = 4  # files of each kind, each with fewer nodes in float, of which one is to hold the time


def closest_in_time(
    found: Mixed,
    times: FileTimes,
    *,
    write: Callable[[Collection[str], Collection[str]], bytes],
    placed: Callable[[bytes], bytes],
    damage_of: Callable[[bytes], float],
    progress: Callable[[str], None],
) -> tuple[tuple[str, ...], bytes] | None:
    """Return the nodes in float and the file; None where no file with nodes in float takes as little time.

    The search went from all-int8 to more and more nodes in float, and down its ladder from all nodes in float. On both
    ways, the first quick ones are judged, and of these the one that does least damage is timed once more.

    Args:
        found: by the search.
        times: those of files beside the one that is not to be exceeded.
        write: returns the file with nodes in float, and of these some with weights of 32 bits.
        placed: returns a file as it is delivered, whose time is taken.
        damage_of: returns that of a file.
        progress: is told what is done.
    """

    def is_quick(group: tuple[str, ...]) -> bool:
        return times.seems_within(placed(write(group, ())), 1.0)

    damage = cache(lambda group: damage_of(write(group, ())))
    candidates = list[tuple[str, ...]]()
    for groups in (found.steps[::-1], found.ladder):
        place = first_quick(groups, is_quick, progress)
        candidates += () if place is None else groups[place : place + _TRIED]
    for group in sorted(filter(None, dict.fromkeys(candidates)), key=damage):
        _, content, _ = with_whole_weights(partial(write, group), group, damage(group), damage_of)
        if times.is_within(placed(content), 1.0):
            return group, content
    return None
