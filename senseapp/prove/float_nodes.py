"""Choice of the nodes of an int8 file to leave in float: measured in the runtime, for the time that they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from senseapp.core.texts import plural
from senseapp.prove.float_in_time import by_promise, in_time
from senseapp.prove.float_screening import Screening
from senseapp.prove.whole_weights import with_whole_weights
from senseapp.runtimes.quantizers import Int8Node, Quantizer
from senseapp.solve.node_precisions import NodeTimes

_TRIED = 40  # files that all judging images run through, before the search takes what it has
_LEAST_GAIN = 0.005  # of the damage that is left; what gains less is not worth its time
_FREE = 0.003  # of the time of all-int8: what costs less counts as that much
_SWAPS = 3  # nodes, those that cost most time, that others are tried instead of
_INSTEAD = 4  # files, of each, and of those that use the time
_LONGER = 6  # timings of the file in the end, each with one node less
_SECONDS = 900.0  # after which the search takes what it has

_TINY = 1e-12  # seconds: what costs none is put back last
_Group = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """An int8 file in which some nodes compute in float, with their weights in 8 bits.

    Attributes:
        in_float: names of the nodes that do, in the order in which they were chosen.
        whole: those of them whose weights are in 32 bits nevertheless.
        gain: by node, the damage of a file in which this node alone is in int8.
        in_time: whether a second, longer timing found it quick enough, too.
        notes: sentences on a search that was cut short.
    """

    content: bytes
    in_float: tuple[str, ...]
    gain: Mapping[str, float]
    whole: tuple[str, ...] = ()
    in_time: bool = True
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
    uses_time: bool = False,
    progress: Callable[[str], None],
    seconds: float = _SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Mixed:
    """Return the int8 file whose most harmful nodes are in float, as long as it stays quick enough.

    Nodes in float keep the 8 bits of their weights, so that the file stays small; those ``always_float`` do not, nor
    do in the end the smallest, where that takes enough damage away for the bytes.

    Groups are measured first, each as one step: all nodes without weights, those behind the last weights, these with
    the last weights, and the first. Then each node is measured in int8 beside all others in float, by ``screen``, and
    so are the most harmful with what follows them. The group that gains most for its time goes to float, where
    ``seconds_of`` predicts the time with given nodes in float, ``damage_of`` confirms the gain beside those chosen
    before, and ``time_of`` the file is at most 1, the time that is allowed; gains that have shrunk meanwhile are
    measured again first (Minoux 1978, "Accelerated greedy algorithms for maximizing submodular set functions"). At
    last, nodes that gain nothing beside those chosen later go back, and others are tried in place of those that cost
    most. The search ends at a file and its damage that are ``is_enough``; what it is still enough without goes back to
    int8.

    Where it is not enough and ``uses_time``, the nodes take its place that should do least harm in the time, by their
    damages alone (:func:`.in_time`): images that choose are too few to tell the small gain of each. Of the many files
    that were timed one is quick enough by chance, so ``holds_time`` decides in the end, and nodes of least gain for
    their time go back.

    A search of a large graph is bounded by ``seconds`` of ``clock``: where nodes one by one would take too long,
    neighbours are measured together, and after that time the best file so far is taken.
    """
    search = _NodeSearch(
        writer,
        tuple(always_float),
        screen,
        damage_of,
        seconds_of,
        time_of,
        is_enough,
        holds_time,
        uses_time,
        progress,
        seconds,
        clock,
    )
    return search.found()


@dataclass
class _NodeSearch:
    writer: Quantizer
    always_float: tuple[str, ...]
    screen: Callable[[bytes], float]
    damage_of: Callable[[bytes], float]
    seconds_of: NodeTimes
    time_of: Callable[[bytes], float]
    is_enough: Callable[[bytes, float], bool]
    holds_time: Callable[[bytes], bool]
    uses_time: bool
    progress: Callable[[str], None]
    seconds: float
    clock: Callable[[], float]
    in_float: _Group = ()
    best: bytes = b""
    least: float = 0.0
    done: bool = False
    tried: int = 0
    nodes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    started: float = 0.0

    def found(self) -> Mixed:
        self.started, self.best = self.clock(), self._with(())
        nodes = self.writer.nodes(self.best)
        self.nodes = [node.name for node in nodes]
        self._take((), self.best, self.damage_of(self.best))
        if self.done or self._is_past():
            notes = () if self.done else ("There was no time to look for parts that are better left in float.",)
            return Mixed(content=self.best, in_float=(), gain={}, notes=notes)
        alone, gains = self._screened(nodes)
        self._add(gains)
        for _ in range(2):
            self._drop_idle()
            if self.done or self._is_past() or not self._swap(gains):
                break
        if self._is_past():
            minutes = max(1, round(self.seconds / 60))
            self.notes.append(
                f"The search for parts to leave in float ended after {plural(minutes, 'minute')} with what it had."
            )
        if self.uses_time and not self.done and not self._is_past():
            self._use_time(alone)
        holds_time = self._keep_time(alone)
        whole = () if self.done or self._is_past() else self._whole()
        return Mixed(
            content=self.best,
            in_float=self.in_float,
            whole=whole,
            gain=alone,
            in_time=holds_time,
            notes=tuple(self.notes),
        )

    def _is_past(self, share: float = 1.0) -> bool:
        return self.clock() - self.started > share * self.seconds

    def _screened(self, nodes: Sequence[Int8Node]) -> tuple[dict[str, float], dict[_Group, float]]:
        def alone_in_int8(group: _Group) -> float:
            others = [node.name for node in nodes if node.name not in group]
            return self.screen(self.writer.write(but=[*self.always_float, *others]))

        screening = Screening(nodes, alone_in_int8, self._is_past, self.progress)
        alone, gains = screening.gains(self.seconds, self.clock)
        self.notes += screening.notes
        return alone, gains

    def _use_time(self, alone: Mapping[str, float]) -> None:
        """Take the most promising of what was found and of nodes that use the time."""
        groups = in_time(alone, self.seconds_of, lambda group: self.time_of(self._with(group)), self.progress)
        candidates = dict.fromkeys((*groups[:_INSTEAD], self.in_float))
        harms = {group: self.screen(self.writer.finished(self._with(group))) for group in candidates}
        best = by_promise(harms, alone)[0]
        if best != self.in_float:
            content = self._with(best)
            self._take(best, content, self.damage_of(content))

    def _keep_time(self, alone: Mapping[str, float]) -> bool:
        """Put nodes back into int8 until the file is found quick enough again; return whether it is."""
        for _ in range(_LONGER):
            self.progress("Timing the file again")
            if not self.in_float or self.holds_time(self.best):
                return True
            least = min(self.in_float, key=lambda node: alone[node] / max(self._cost(node), _TINY))
            fewer = tuple(each for each in self.in_float if each != least)
            content = self._with(fewer)
            self._take(fewer, content, self.damage_of(content))
        return self.holds_time(self.best)

    def _whole(self) -> _Group:
        """Store weights of nodes in float in 32 bits where that is worth the bytes; return whose."""
        self.progress("Trying weights of parts in float in 32 bits")
        chosen, content, damage = with_whole_weights(
            lambda whole: self._with(self.in_float, whole=whole), self.in_float, self.least, self.damage_of
        )
        if chosen:
            self.best, self.least = content, damage
        return chosen

    def _with(self, in_float: Collection[str], *, whole: Collection[str] = ()) -> bytes:
        rest = [node for node in in_float if node not in whole]
        return self.writer.write(but=[*self.always_float, *whole], weights_only=rest)

    def _take(self, in_float: _Group, content: bytes, damage: float) -> None:
        self.in_float, self.best, self.least = in_float, content, damage
        self.done = self.is_enough(content, damage)

    def _worth(self, group: _Group, gain: float) -> float:
        """Return the gain of a group for the time that it adds to the file."""
        now = self.seconds_of(self.in_float)
        added = self.seconds_of({*self.in_float, *group}) - now
        return gain / max(added, _FREE * now)

    def _add(self, gains: Mapping[_Group, float]) -> None:
        """Leave in float what gains most for its time, one group after the other."""
        waiting = {group: gain for group, gain in gains.items() if not set(group) <= set(self.in_float)}
        while waiting and self.tried < _TRIED and not self.done and not self._is_past():
            self.progress(f"Choosing what stays in float · {self.tried} of at most {_TRIED}")
            ranked = sorted(waiting, key=lambda group: -self._worth(group, waiting[group]))
            group = ranked[0]
            if waiting[group] < _LEAST_GAIN * self.least:
                del waiting[group]
                continue
            tried = tuple(dict.fromkeys((*self.in_float, *group)))
            if tried == self.in_float or len(tried) >= len(self.nodes):
                del waiting[group]
                continue
            candidate = self._with(tried)
            damage = self._measured(candidate)
            gain = self.least - damage
            behind = len(ranked) > 1 and self._worth(group, gain) < self._worth(ranked[1], waiting[ranked[1]])
            if gain >= _LEAST_GAIN * self.least and behind and gain < waiting[group]:
                waiting[group] = gain  # it may be the best again later
                continue
            del waiting[group]
            if gain >= _LEAST_GAIN * self.least and self.time_of(candidate) <= 1:
                self._take(tried, candidate, damage)

    def _measured(self, content: bytes) -> float:
        self.tried += 1
        return self.damage_of(content)

    def _drop_idle(self) -> None:
        """Put back into int8 what gains nothing beside the others, or is not needed; what costs most first."""
        for node in sorted(self.in_float, key=lambda node: -self._cost(node)):
            if self._is_past():
                return
            fewer = tuple(each for each in self.in_float if each != node)
            candidate = self._with(fewer)
            if (damage := self.damage_of(candidate)) <= self.least or (self.done and self.is_enough(candidate, damage)):
                self._take(fewer, candidate, damage)

    def _cost(self, node: str) -> float:
        """Return the seconds that a node in float costs the file."""
        return self.seconds_of(self.in_float) - self.seconds_of([each for each in self.in_float if each != node])

    def _swap(self, gains: Mapping[_Group, float]) -> bool:
        """Try others in place of those that cost most; return whether that is better."""
        before, best, least = self.in_float, self.best, self.least
        for node in sorted(before, key=lambda node: -self._cost(node))[:_SWAPS]:
            if self._is_past():
                return False
            fewer = tuple(each for each in before if each != node)
            content = self._with(fewer)
            self._take(fewer, content, self.damage_of(content))
            self.tried = _TRIED - _INSTEAD
            self._add({group: gain for group, gain in gains.items() if node not in group})
            if self.done or self.least < (1 - _LEAST_GAIN) * least:
                return True
            self.in_float, self.best, self.least = before, best, least
        return False
