"""Choice of the nodes of an int8 file to leave in float: measured in the runtime, for the time that they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from senseapp.core.texts import plural
from senseapp.prove.float_screening import Screening
from senseapp.prove.whole_weights import with_whole_weights
from senseapp.runtimes.quantizers import Int8Node, Quantizer

_TRIED = 40  # files that all judging images run through, before the search takes what it has
_LEAST_GAIN = 0.005  # of the damage that is left; what gains less is not worth its time
_FREE = 0.003  # of the time of all-int8: what costs less counts as that much
_SWAPS = 3  # nodes, those that cost most time, that others are tried instead of
_INSTEAD = 4  # files, of each
_HALVINGS = 5  # timings that find how many more nodes the time allows
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
        gain: by node, how much less damage the file does where this node alone is in float.
        in_time: whether a second, longer timing found it quick enough, too.
        steps: nodes in float of the files that the search went through, each with more of them than the one before.
        ladder: nodes in float of further files, from nearly all nodes to few: each is predicted to be quicker than the
            one before, for the least damage.
        notes: sentences on a search that was cut short.
    """

    content: bytes
    in_float: tuple[str, ...]
    gain: Mapping[str, float]
    whole: tuple[str, ...] = ()
    in_time: bool = True
    steps: tuple[tuple[str, ...], ...] = ()
    ladder: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def mixed(
    writer: Quantizer,
    *,
    always_float: Collection[str] = (),
    screen: Callable[[bytes], float],
    damage_of: Callable[[bytes], float],
    seconds_of: Callable[[Collection[str]], float],
    is_quick_enough: Callable[[bytes], bool],
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
    the last weights, and the first. Then each node is measured in float beside all others in int8, by ``screen``, and
    so is what follows one of the best. The group that gains most for its time goes to float, where ``seconds_of``
    predicts the time with given nodes in float, ``damage_of`` confirms the gain beside those chosen before, and the
    file is quick enough; gains that have shrunk meanwhile are measured again first (Minoux 1978, "Accelerated greedy
    algorithms for maximizing submodular set functions"). At last, nodes that gain nothing beside those chosen later go
    back, and others are tried in place of those that cost most. The search ends at a file and its damage that are
    ``is_enough``; what it is still enough without goes back to int8.

    Where it is not enough and ``uses_time``, more nodes go to float together, as many as are quick enough, if that does
    less damage: images that choose are too few to tell the small gain of each. Where float is nearly as quick, that is
    the first quick one of a ladder from all nodes in float down to none. Of the many files that were timed one is
    quick enough by chance, so ``holds_time`` decides in the end, and nodes of least gain for their time go back.

    A search of a large graph is bounded by ``seconds`` of ``clock``: where nodes one by one would take too long,
    neighbours are measured together, and after that time the best file so far is taken.
    """
    search = _NodeSearch(
        writer,
        tuple(always_float),
        damage_of,
        seconds_of,
        is_quick_enough,
        is_enough,
        holds_time,
        uses_time,
        progress,
        seconds,
        clock,
    )
    return search.found(screen)


@dataclass
class _NodeSearch:
    writer: Quantizer
    always_float: tuple[str, ...]
    damage_of: Callable[[bytes], float]
    seconds_of: Callable[[Collection[str]], float]
    is_quick_enough: Callable[[bytes], bool]
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
    steps: list[_Group] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    started: float = 0.0

    def found(self, screen: Callable[[bytes], float]) -> Mixed:
        self.started, self.best = self.clock(), self._with(())
        nodes = self.writer.nodes(self.best)
        self.nodes = [node.name for node in nodes]
        self._take((), self.best, self.damage_of(self.best))
        if self.done or self._is_past():
            notes = () if self.done else ("There was no time to look for parts that are better left in float.",)
            return Mixed(content=self.best, in_float=(), gain={}, notes=notes)
        alone, gains = self._screened(nodes, screen)
        self._add(gains, self.steps)
        for _ in range(2):
            self._drop_idle()
            if self.done or self._is_past() or not self._swap(gains):
                break
        if self._is_past():
            minutes = max(1, round(self.seconds / 60))
            self.notes.append(
                f"The search for parts to leave in float ended after {plural(minutes, 'minute')} with what it had."
            )
        ladder = self._ladder(nodes, alone)
        if self.uses_time and not self.done and not self._is_past():
            self._fill(alone)
            self._descend(ladder)
        in_time = self._keep_time(alone)
        whole = () if self.done or self._is_past() else self._whole()
        return Mixed(
            content=self.best,
            in_float=self.in_float,
            whole=whole,
            gain=alone,
            in_time=in_time,
            steps=tuple(self.steps),
            ladder=tuple(ladder),
            notes=tuple(self.notes),
        )

    def _is_past(self, share: float = 1.0) -> bool:
        return self.clock() - self.started > share * self.seconds

    def _screened(
        self, nodes: Sequence[Int8Node], screen: Callable[[bytes], float]
    ) -> tuple[dict[str, float], dict[_Group, float]]:
        screening = Screening(nodes, lambda group: screen(self._with(group)), self._is_past, self.progress)
        alone, gains = screening.gains(self.seconds, self.clock)
        self.notes += screening.notes
        return alone, gains

    def _fill(self, alone: Mapping[str, float]) -> None:
        """Leave in float what the rest of the time allows, the most gain for its time first."""
        rest = [node for node in self.nodes if node not in self.in_float]
        ranked = sorted(rest, key=lambda node: -self._worth((node,), alone[node]))[: len(rest) - 1]  # one stays in int8
        few, many = 0, len(ranked) + 1  # of which the former are quick enough, the latter are not
        for _ in range(_HALVINGS):
            middle = (few + many) // 2
            if middle == few:
                break
            self.progress("Using the rest of the time for parts in float")
            quick = self.is_quick_enough(self._with((*self.in_float, *ranked[:middle])))
            few, many = (middle, many) if quick else (few, middle)
        tried = (*self.in_float, *ranked[:few])
        candidate = self._with(tried)
        if few and (damage := self.damage_of(candidate)) < self.least:
            self._take(tried, candidate, damage)

    def _ladder(self, nodes: Sequence[Int8Node], alone: Mapping[str, float]) -> list[_Group]:
        """Return sets of nodes in float, from all to none: the node goes to int8 that saves most time for its gain.

        Where a first node in int8 among others in float only adds borders, those beside it save time afterwards: such
        sets are passed, and not returned.
        """
        beside: dict[str, set[str]] = {node.name: set() for node in nodes}
        for node in nodes:
            for reader in beside.keys() & set(node.readers):
                beside[node.name].add(reader)
                beside[reader].add(node.name)
        rest, found = dict.fromkeys(self.nodes), list[_Group]()

        def saved(node: str, now: float) -> float:
            return now - self.seconds_of([each for each in rest if each != node])

        now = quickest = self.seconds_of(rest)
        saves = {node: saved(node, now) for node in rest}
        least = _LEAST_GAIN * max((max(alone.values(), default=0.0), _TINY))
        while rest:
            worth = {each: saves[each] / max(alone[each], least) for each in rest if saves[each] > 0}
            best = max(worth or rest, key=(worth or saves).__getitem__)
            del rest[best]
            now = self.seconds_of(rest)
            if now < quickest or not found:
                quickest = now
                found.append(tuple(rest))
            saves |= {each: saved(each, now) for each in beside[best] if each in rest}
        return found

    def _descend(self, ladder: Sequence[_Group]) -> None:
        """Take the first file of a ladder that is quick enough, where it does less damage."""
        place = first_quick(ladder, lambda group: self.is_quick_enough(self._with(group)), self.progress)
        if place is None:
            return
        candidate = self._with(ladder[place])
        if (damage := self.damage_of(candidate)) < self.least:
            self._take(ladder[place], candidate, damage)

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

    def _add(self, gains: Mapping[_Group, float], steps: list[_Group] | None = None) -> None:
        """Leave in float what gains most for its time, one group after the other; ``steps`` are told each."""
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
            if gain >= _LEAST_GAIN * self.least and self.is_quick_enough(candidate):
                self._take(tried, candidate, damage)
                if steps is not None:
                    steps.append(tried)

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


def first_quick(
    ladder: Sequence[_Group], is_quick_enough: Callable[[_Group], bool], progress: Callable[[str], None]
) -> int | None:
    """Return the place of the first group of a ladder that is quick enough, by halving; None where none was found."""
    low, high, found = 0, len(ladder), None
    while low < high:
        progress("Using the rest of the time for parts in float")
        middle = (low + high) // 2
        if is_quick_enough(ladder[middle]):
            high = found = middle
        else:
            low = middle + 1
    return found
