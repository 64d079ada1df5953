"""Choice of the nodes of an int8 file to leave in float: by measured damage, for the time that they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from senseapp.core.texts import plural
from senseapp.prove.float_in_time import closest, fewest
from senseapp.prove.float_screening import Group, damages_alone
from senseapp.prove.whole_weights import with_whole_weights
from senseapp.runtimes.quantizers import Quantizer
from senseapp.solve.node_precisions import NodeTimes

_SECONDS = 900.0  # after which the search takes what it has
_TOO_SLOW = "No file with parts in float was found to keep to the time that is allowed, so none is."


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """An int8 file in which some nodes compute in float, with their weights in 8 bits.

    Attributes:
        in_float: names of the nodes that do.
        whole: those of them whose weights are in 32 bits nevertheless.
        gain: by node, the damage of a file in which this node alone is in int8.
        notes: sentences on a search that was cut short.
    """

    content: bytes
    in_float: Group = ()
    gain: Mapping[str, float]
    whole: Group = ()
    notes: tuple[str, ...] = ()


def mixed(
    writer: Quantizer,
    *,
    always_float: Collection[str] = (),
    screen: Callable[[bytes], float],
    damage_of: Callable[[bytes], float],
    seconds_of: NodeTimes,
    time_of: Callable[[bytes], float],
    is_enough: Callable[[bytes, float], bool] = lambda _content, damage: damage <= 0,
    holds_time: Callable[[bytes], bool] = lambda _content: True,
    progress: Callable[[str], None],
    seconds: float = _SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Mixed:
    """Return the int8 file of least damage that stays quick enough, or the quickest one that is good enough.

    Nodes in float keep the 8 bits of their weights, so that the file stays small; those ``always_float`` do not, nor
    do in the end the smallest, where that takes enough damage away for the bytes.

    The damage of each node alone in int8 is found by ``screen`` (:func:`.damages_alone`). The nodes in float that leave
    least of it in the time that is allowed are solved for, with times predicted by ``seconds_of``; ``time_of`` times a
    file, at most 1 being allowed, and ``holds_time`` times it for longer (:func:`.closest`). ``damage_of`` confirms
    that the file does less harm than all of it in int8. Where it ``is_enough``, fewer nodes are tried
    (:func:`.fewest`). ``seconds`` of ``clock`` are a safety: after them, no further groups of nodes are measured.
    """
    started = clock()

    def has_time() -> bool:
        return clock() - started <= seconds

    def write(in_float: Collection[str], whole: Collection[str] = ()) -> bytes:
        rest = [node for node in in_float if node not in whole]
        return writer.write(but=[*always_float, *whole], weights_only=rest)

    def alone_in_int8(group: Group) -> float:
        return screen(writer.write(but=[*always_float, *(node for node in nodes if node not in group)]))

    def enough(group: Group) -> bool:
        content = write(group)
        return is_enough(content, damage_of(content))

    all_int8 = write(())
    nodes, most = writer.nodes(all_int8), damage_of(all_int8)
    found = Mixed(content=all_int8, gain={})
    if not nodes or is_enough(all_int8, most):
        return found
    found = replace(found, gain=damages_alone(nodes, alone_in_int8, progress, has_time=has_time))
    if not has_time():
        found = replace(found, notes=(_cut_short(seconds),))
    group = closest(
        found.gain,
        seconds_of,
        time_of=lambda each: time_of(write(each)),
        screen=lambda each: screen(writer.finished(write(each))),
        holds_time=lambda each: holds_time(write(each)),
        progress=progress,
    )
    if group is None:
        return replace(found, notes=(*found.notes, _TOO_SLOW))
    if not damage_of(write(group)) < most:
        return found
    if enough(group):
        progress("Trying fewer parts in float")
        group = fewest(found.gain, seconds_of, group, enough)
    progress("Trying weights of parts in float in 32 bits")
    whole, content, _ = with_whole_weights(lambda each: write(group, each), group, damage_of(write(group)), damage_of)
    return replace(found, content=content, in_float=group, whole=whole)


def _cut_short(seconds: float) -> str:
    minutes = plural(max(1, round(seconds / 60)), "minute")
    return (
        f"The search for parts to leave in float was ended after {minutes}, before it knew which of them do most harm: "
        "some may be in int8 that should not."
    )
