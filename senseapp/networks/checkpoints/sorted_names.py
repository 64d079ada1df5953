"""Order of the weights in a file that is sorted by name, reconstructed from the shapes of an architecture.

``.safetensors`` files are sorted by name. The names still imply: weights with one prefix belong together, siblings that
differ in numbers alone (``conv1`` and ``conv2``, or ``conv_a`` and ``conv_b``) ascend, and two siblings have the same
order below each prefix that has both. Within these constraints, all orders that give the architecture's shapes are
tried. The result is the only such order, or the one whose names share more endings with the architecture's than all
others; else none, because exchanged layers of equal shape would give wrong figures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice, takewhile

from senseapp.networks.checkpoints.fingerprint import Pattern, Shape, Shapes, fits_pattern

_NUMBER = re.compile(r"\d{1,18}|(?<![a-z\d])[a-d](?![a-z\d])", re.IGNORECASE)  # not q, k and v
_MOST_PARTS = 150  # siblings; each takes a frame of Python's stack
_MOST_STEPS = 50_000  # of a search that could take exponentially many; names in order need few
_MOST_ORDERS = 64  # with as many, names decide nothing; two are returned, so that it counts as ambiguous
_Layers = Mapping[str, Sequence[str]]
"""Names of the weights by layer, in the order of PyTorch's own layers."""


@dataclass(slots=True)
class _Node:
    """Content below one prefix: the weights of a layer, and child nodes by name."""

    weights: Sequence[str] = ()
    parts: dict[str, _Node] = field(default_factory=dict)

    def all_weights(self) -> Iterator[str]:
        yield from self.weights
        for part in self.parts.values():
            yield from part.all_weights()


def exchangeable(layers: _Layers, shapes: Shapes) -> tuple[str, str] | None:
    """Return two siblings with equal shapes whose order no number determines; None if there are none.

    Underscores separate parts of names too, as in files whose names have no dots.
    """
    pending = [("", _tree(layers, r"[._/]"))]
    while pending:
        prefix, node = pending.pop()
        alike: dict[frozenset[tuple[Shape, int]], str] = {}
        for part, below in node.parts.items():
            other = alike.setdefault(frozenset(Counter(shapes[name] for name in below.all_weights()).items()), part)
            if _kind(other) != _kind(part):
                return f"{prefix}{other}", f"{prefix}{part}"
            pending.append((f"{prefix}{part}.", below))
    return None


def arrangements(layers: _Layers, shapes: Shapes, wanted: Mapping[str, Pattern]) -> list[tuple[str, ...]]:
    """Return up to two orders of all weights with the shapes ``wanted``, those of an architecture in its order.

    Of several orders, only those whose names share the most endings with the architecture's are returned. Empty if
    there are too many possibilities to try.
    """
    search = _OrderSearch(shapes, list(wanted.values()))
    try:
        found = list(islice(search.orders(_tree(layers, r"[./]"), 0), _MOST_ORDERS))
    except RecursionError:
        return []
    if search.steps > _MOST_STEPS:
        return []
    if len(found) == _MOST_ORDERS:
        return found[:2]
    alike = [order for order in found if _is_consistent(order)] or found
    named = {order: _endings_in_common(order, wanted) for order in alike}
    return [order for order in alike if named[order] == max(named.values())][:2]


def _endings_in_common(order: Sequence[str], own: Iterable[str]) -> int:
    """Return the total number of trailing name parts that equal those of ``own``."""
    pairs = ((_parts(name.lower())[::-1], _parts(known.lower())[::-1]) for name, known in zip(order, own, strict=True))
    return sum(len(list(takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False)))) for pair in pairs)


def _parts(name: str) -> list[str]:
    return re.split(r"[./]", name)


def _is_consistent(order: Sequence[str]) -> bool:
    """Return whether two siblings have the same order below each prefix that has both."""
    below: dict[tuple[str, ...], dict[str, None]] = {}
    for name in order:
        parts = _parts(name)
        for depth, part in enumerate(parts):
            below.setdefault(tuple(parts[:depth]), {})[part] = None
    before = {pair for parts in below.values() for pair in combinations(parts, 2)}
    return not any((second, first) in before for first, second in before)


class _OrderSearch:
    """Enumerates orders of parts with the required shapes, by backtracking over the places."""

    def __init__(self, shapes: Shapes, wanted: Sequence[Pattern]) -> None:
        self._shapes, self._wanted = shapes, wanted
        self.steps = 0

    def orders(self, node: _Node, start: int) -> Iterator[tuple[str, ...]]:
        """Yield the orders of the weights below ``node`` with the shapes wanted from the place ``start`` on."""
        self.steps += 1
        end = start + len(node.weights)
        if len(node.parts) > _MOST_PARTS or not self._fit(node.weights, self._wanted[start:end]):
            return
        kinds: dict[str, list[_Node]] = {}
        for part in sorted(node.parts, key=_ascending):
            kinds.setdefault(_kind(part), []).append(node.parts[part])
        for names in self._interleaved(list(kinds.values()), (0,) * len(kinds), end):
            yield (*node.weights, *names)

    def _interleaved(
        self, kinds: Sequence[Sequence[_Node]], taken: tuple[int, ...], start: int
    ) -> Iterator[tuple[str, ...]]:
        """Yield the interleavings of the remaining nodes of ``kinds``, each in its own order."""
        if self.steps > _MOST_STEPS or all(len(parts) == count for parts, count in zip(kinds, taken, strict=True)):
            yield ()
            return
        for index, parts in enumerate(kinds):
            if taken[index] < len(parts):
                rest = (*taken[:index], taken[index] + 1, *taken[index + 1 :])
                for first in self.orders(parts[taken[index]], start):
                    for others in self._interleaved(kinds, rest, start + len(first)):
                        yield (*first, *others)

    def _fit(self, names: Sequence[str], wanted: Sequence[Pattern]) -> bool:
        return len(names) == len(wanted) and all(
            fits_pattern(self._shapes[name], pattern) for name, pattern in zip(names, wanted, strict=True)
        )


def _tree(layers: _Layers, separator: str) -> _Node:
    root = _Node()
    for layer, names in layers.items():
        node = root
        for part in re.split(separator, layer) if layer else ():
            node = node.parts.setdefault(part, _Node())
        node.weights = (*node.weights, *names)
    return root


def _kind(part: str) -> str:
    """Return a name with its numbers masked."""
    return _NUMBER.sub("#", part)


def _ascending(part: str) -> list[tuple[int, str]]:
    return [(int(found) if found.isdigit() else 0, found) for found in _NUMBER.findall(part)]
