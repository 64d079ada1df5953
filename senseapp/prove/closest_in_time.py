"""The int8 file of least damage that takes no longer than another file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from senseapp.prove.file_times import MARGIN, FileTimes, keeps_to
from senseapp.prove.float_in_time import by_promise, in_time
from senseapp.prove.float_nodes import Mixed
from senseapp.prove.whole_weights import with_whole_weights
from senseapp.solve.node_precisions import NodeTimes

_TRIED = 3  # files of those that should do least harm, of which one is to hold the time
_TOO_SLOW = 1.01  # times what is allowed: what a file counts as that a longer timing found too slow
_SHARES = (1.0, 0.97, 0.94, 0.9)  # of the time, for which files are looked for, until one holds it
_FURTHER = 6  # parts that are tried in float in what is left of the time


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
    timing finds quick enough, too; where none is, files are looked for that should take less. What is left of the time
    is for further nodes, those of most damage first.

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

    def made(group: tuple[str, ...]) -> bytes:
        _, content, _ = with_whole_weights(partial(write, group), group, damage_of(write(group, ())), damage_of)
        return content

    def screened(group: tuple[str, ...]) -> float:
        return screen(write(group, ()))

    def spent(content: bytes) -> float | None:
        taken = times.anew(placed(content))
        return taken.value if keeps_to(taken, 1.0) else None

    at_first, refused = times.anew(placed(write((), ()))).high, set[frozenset[str]]()
    timed = {group: ratio * at_first for group, ratio in ({(): 1.0} | relative).items()}
    tried = set[tuple[str, ...]]()
    for share in _SHARES:
        if share < 1 and not has_time():
            break
        groups = in_time(found.gain, predicted, time_of, progress, aim=share, timed=timed)
        relative.update({group: ratio / at_first for group, ratio in timed.items()})
        measured = {group: screened(group) for group in groups[:_TRIED] if group not in tried}
        tried.update(measured)
        for group in by_promise(measured, found.gain):
            content = made(group)
            if (taken := spent(content)) is not None:
                progress("Using what is left of the time")
                seconds = predicted.corrected({each: ratio for each, ratio in relative.items() if each})
                costs = _Costs(found.gain, seconds, at_first / seconds(()), refused)
                return _filled(group, content, taken, costs, made, spent, screened, has_time)
            timed[group] = max(timed[group], _TOO_SLOW)
            refused.add(frozenset(group))
    return None


@dataclass(frozen=True, slots=True)
class _Costs:
    """What is known of nodes: their damages in int8, their times of which ``unit`` is allowed, and groups too slow."""

    damages: Mapping[str, float]
    seconds: NodeTimes
    unit: float
    refused: Collection[frozenset[str]]

    def next_one(self, group: tuple[str, ...], left: float, but: Collection[str]) -> str | None:
        """Return the node of most damage that should fit in what is ``left`` of the time beside ``group``."""
        now = self.seconds(group)
        fitting = [
            node
            for node, damage in self.damages.items()
            if damage > 0
            and node not in group
            and node not in but
            and frozenset((*group, node)) not in self.refused
            and self.unit * (self.seconds((*group, node)) - now) <= left
        ]
        return max(fitting, key=self.damages.__getitem__, default=None)


def _filled(
    group: tuple[str, ...],
    content: bytes,
    taken: float,
    costs: _Costs,
    made: Callable[[tuple[str, ...]], bytes],
    spent: Callable[[bytes], float | None],
    screened: Callable[[tuple[str, ...]], float],
    has_time: Callable[[], bool],
) -> tuple[tuple[str, ...], bytes]:
    """Return a group and its file with further nodes in float that it is still quick enough with.

    ``taken`` is the time of the file, of what is allowed; ``spent`` is None where a file does not keep to it. Nodes
    that do no less harm together are left in int8.
    """
    tried, least = list[str](), screened(group)
    while len(tried) < _FURTHER and has_time():
        node = costs.next_one(group, MARGIN - taken, tried)
        if node is None or len(group) + 1 == len(costs.damages):  # one stays in int8
            break
        tried.append(node)
        more = (*group, node)
        if (harm := screened(more)) > least:
            continue
        file = made(more)
        if (found := spent(file)) is not None:
            group, content, taken, least = more, file, found, harm
    return group, content
