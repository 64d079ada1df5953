"""Which nodes of an int8 file are better left in float: measured in the runtime, for the time that they cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from senseapp.runtimes.base import Int8Node, Quantizer

_TRIED = 40  # files that all judging images run through, before the search takes what it has
_BEST = 8  # nodes, that are also measured with what reads them
_LEAST_GAIN = 0.005  # of the damage that is left; what gains less is not worth its time
_FREE = 0.003  # of the time of all-int8: what costs less counts as that much
_SWAPS = 3  # nodes, those that cost most time, that others are tried instead of
_INSTEAD = 4  # files, of each
_MOST_BYTES = 1.5  # times those of all-int8, of about 4 that float takes: what small gains may cost
_HALVINGS = 5  # timings that find how many more nodes the time allows
_LONGER = 6  # timings of the file in the end, each with one node less

_TINY = 1e-12  # seconds: what costs none is put back last
_Group = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """An int8 file in which some nodes compute in float.

    Attributes:
        in_float: names of the nodes that do, in the order in which they were chosen.
        gain: by node, how much less damage the file does where this node alone is in float.
        in_time: whether a second, longer timing found it quick enough, too.
    """

    content: bytes
    in_float: tuple[str, ...]
    gain: Mapping[str, float]
    in_time: bool = True


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
) -> Mixed:
    """Return the int8 file whose most harmful nodes are in float, as long as it stays quick enough.

    Each node is first measured in float beside all others in int8, by ``screen``, and so are all additions and the like
    together, and what follows one of the best. Then the group of nodes that gains most for its time goes to float,
    where ``seconds_of`` predicts the time with given nodes in float, ``damage_of`` confirms the gain beside those
    chosen before, and the file is quick enough; gains that have shrunk meanwhile are measured again first (Minoux
    1978, "Accelerated greedy algorithms for maximizing submodular set functions"). At last, nodes that gain nothing
    beside those chosen later go back, and others are tried in place of those that cost most. The search ends at a file
    and its damage that are ``is_enough``; what it is still enough without goes back to int8.

    Where it is not enough and ``uses_time``, more nodes go to float together, as many as are quick enough and leave the
    file small, if that does less damage: images that choose are too few to tell the small gain of each. Of the many
    files that were timed one is quick enough by chance, so ``holds_time`` decides in the end, and nodes of least gain
    for their time go back.
    """
    search = _NodeSearch(
        writer, tuple(always_float), damage_of, seconds_of, is_quick_enough, is_enough, holds_time, uses_time, progress
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
    in_float: _Group = ()
    best: bytes = b""
    least: float = 0.0
    done: bool = False
    tried: int = 0
    nodes: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    most_bytes: float = 0.0

    def found(self, screen: Callable[[bytes], float]) -> Mixed:
        self.best = self._with(())
        nodes = self.writer.nodes(self.best)
        self.nodes = [node.name for node in nodes]
        self._take((), self.best, self.damage_of(self.best))
        self.most_bytes = _MOST_BYTES * len(self.best)
        if self.done:
            return Mixed(content=self.best, in_float=(), gain={})
        at_first, gains = screen(self.best), dict[_Group, float]()
        for index, node in enumerate(self.nodes):
            self.progress(f"Measuring each part in float · {index} of {len(self.nodes)}")
            content = self._with((node,))
            gains[node,] = at_first - screen(content)
            self.sizes[node] = len(content) - len(self.best)
        alone = {node: gains[node,] for node in self.nodes}
        for group in _groups(nodes, alone):
            gains[group] = at_first - screen(self._with(group))
        self._add(gains)
        for _ in range(2):
            self._drop_idle()
            if self.done or not self._swap(gains):
                break
        if self.uses_time and not self.done:
            self._fill(alone)
        in_time = self._keep_time(alone)
        return Mixed(content=self.best, in_float=self.in_float, gain=alone, in_time=in_time)

    def _fill(self, alone: Mapping[str, float]) -> None:
        """Leave in float what the rest of the time and of the bytes allow, the most gain for its time first."""
        rest = [node for node in self.nodes if node not in self.in_float]
        ranked, size = list[str](), len(self.best)
        for node in sorted(rest, key=lambda node: -self._worth((node,), alone[node])):
            if size + self.sizes[node] <= self.most_bytes:
                ranked.append(node)
                size += self.sizes[node]
        ranked = ranked[: len(rest) - 1]  # some part stays in int8
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

    def _with(self, in_float: Collection[str]) -> bytes:
        return self.writer.write(but=[*self.always_float, *in_float])

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
        while waiting and self.tried < _TRIED and not self.done:
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

    def _measured(self, content: bytes) -> float:
        self.tried += 1
        return self.damage_of(content)

    def _drop_idle(self) -> None:
        """Put back into int8 what gains nothing beside the others, or is not needed; what costs most first."""
        for node in sorted(self.in_float, key=lambda node: -self._cost(node)):
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
            fewer = tuple(each for each in before if each != node)
            content = self._with(fewer)
            self._take(fewer, content, self.damage_of(content))
            self.tried = _TRIED - _INSTEAD
            self._add({group: gain for group, gain in gains.items() if node not in group})
            if self.done or self.least < (1 - _LEAST_GAIN) * least:
                return True
            self.in_float, self.best, self.least = before, best, least
        return False


def _groups(nodes: Sequence[Int8Node], gain: Mapping[str, float]) -> list[_Group]:
    """Return nodes that may gain together: those without weights, and the best with what reads them."""
    weightless = tuple(node.name for node in nodes if node.elementwise)
    groups = [weightless] if len(weightless) > 1 else []
    for node in sorted(nodes, key=lambda each: -gain[each.name])[:_BEST]:
        groups += [(node.name, reader) for reader in node.readers]
    return list(dict.fromkeys(groups))
