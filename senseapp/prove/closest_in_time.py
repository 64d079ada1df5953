"""The int8 file of least damage that takes no longer than another file."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from senseapp.prove.file_times import FileTimes
from senseapp.prove.float_in_time import by_promise, in_time
from senseapp.prove.float_nodes import Mixed
from senseapp.prove.whole_weights import with_whole_weights
from senseapp.solve.node_precisions import NodeTimes

_TRIED = 3  # files of those that should do least harm, of which one is to hold the time
_TOO_SLOW = 1.01  # times what is allowed: what a file counts as that a longer timing found too slow
_SHARES = (1.0, 0.97, 0.94, 0.9)  # of the time, for which files are looked for, until one holds it


def closest_in_time(
    found: Mixed,
    predicted: NodeTimes,
    relative: dict[tuple[str, ...], float],
    times: FileTimes,
    *,
    write: Callable[[Collection[str], Collection[str]], bytes],
    placed: Callable[[bytes], bytes],
    screen: Callable[[bytes], float],
    damage_of: Callable[[bytes], float],
    progress: Callable[[str], None],
    has_time: Callable[[], bool] = lambda: True,
) -> tuple[tuple[str, ...], bytes] | None:
    """Return the nodes in float and the file; None where no file with nodes in float takes as little time.

    Of the files that should do least harm in the time (:func:`.in_time`), the most promising one is taken that a longer
    timing finds quick enough, too; where none is, files are looked for that should take less.

    Args:
        found: by the search, which measured single nodes.
        predicted: times of files by their nodes in float.
        relative: of files that were timed already, by their nodes in float, as multiples of the time of the one
            without; gets those that are timed here.
        times: those of files beside the one that is not to be exceeded.
        write: returns the file with nodes in float, and of these some with weights of 32 bits.
        placed: returns a file as it is delivered, whose time is taken.
        screen: returns the typical damage of a file, by which files are compared.
        damage_of: returns the damage of a file, by which weights are worth 32 bits.
        progress: is told what is done.
        has_time: whether another share of the time may be tried.
    """

    def time_of(group: tuple[str, ...]) -> float:
        return times.seems(placed(write(group, ())))

    at_first = times.anew(placed(write((), ()))).high
    timed = {group: ratio * at_first for group, ratio in ({(): 1.0} | relative).items()}
    tried = set[tuple[str, ...]]()
    for share in _SHARES:
        if share < 1 and not has_time():
            break
        groups = in_time(found.gain, predicted, time_of, progress, aim=share, timed=timed)
        relative.update({group: ratio / at_first for group, ratio in timed.items()})
        measured = {group: screen(write(group, ())) for group in groups[:_TRIED] if group not in tried}
        tried.update(measured)
        for group in by_promise(measured, found.gain):
            _, content, _ = with_whole_weights(partial(write, group), group, damage_of(write(group, ())), damage_of)
            if times.is_within(placed(content), 1.0):
                return group, content
            timed[group] = max(timed[group], _TOO_SLOW)
    return None
