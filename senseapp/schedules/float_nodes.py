"""Which nodes of an int8 file are better left in float, measured in the runtime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from senseapp.schedules.int8 import PLUMBING, Int8Writer, int8_nodes

_ELEMENTWISE = ("Add", "Mul", "Sub", "Div")
_TRIED = 24  # nodes, the most harmful first: what follows hardly counts, and each costs a file and its measurement
_TOGETHER = 2  # of those that gained nothing alone: a tensor stays in int8 while the node on its other end does
_BEST = 8  # nodes, that are also measured with what reads them
_LEAST_GAIN = 0.02  # of the damage that is left; what gains less is not worth its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """An int8 file in which some nodes compute in float.

    Attributes:
        in_float: names of the nodes that do, in the order in which they were chosen.
        gain: by node, how much less damage the file does where this node alone is in float.
    """

    content: bytes
    in_float: tuple[str, ...]
    gain: Mapping[str, float]


def mixed(
    writer: Int8Writer,
    *,
    always_float: Collection[str] = (),
    damage_of: Callable[[bytes], float],
    is_quick_enough: Callable[[bytes], bool],
    enough: float = 0.0,
    most: int | None = None,
    progress: Callable[[str], None],
) -> Mixed:
    """Return the int8 file whose most harmful nodes are in float, as long as it stays quick enough.

    Each node is first measured in float beside all others in int8, and so are all additions and the like together, and
    what follows one of the best. From the most gainful on, a group of nodes goes to float where the whole file then
    does less damage on the same images, by itself or with those tried before it, and is kept there only so. Nodes that
    gain nothing beside those chosen later go back. The search ends at a damage of ``enough``, or with ``most`` nodes.
    """
    return _Search(writer, tuple(always_float), damage_of, is_quick_enough, enough, most, progress).found()


@dataclass
class _Search:
    writer: Int8Writer
    always_float: tuple[str, ...]
    damage_of: Callable[[bytes], float]
    is_quick_enough: Callable[[bytes], bool]
    enough: float
    most: int | None
    progress: Callable[[str], None]

    def found(self) -> Mixed:
        best = self._with(())
        nodes, least = int8_nodes(best), self.damage_of(best)
        gains: dict[tuple[str, ...], float] = {}
        for index, node in enumerate(nodes):
            self.progress(f"Measuring each part in float · {index} of {len(nodes)}")
            gains[node,] = least - self.damage_of(self._with((node,)))
        alone = {node: gains[node,] for node in nodes}
        for group in _groups(best, nodes, alone):
            gains[group] = least - self.damage_of(self._with(group))
        in_float: tuple[str, ...] = ()
        rejected: tuple[str, ...] = ()
        ranked = sorted(gains, key=lambda group: -gains[group])[:_TRIED]
        for index, group in enumerate(ranked):
            self.progress(f"Choosing what stays in float · {index} of {len(ranked)}")
            for together in (group, (*rejected[-_TOGETHER:], *group))[: 2 if rejected else 1]:
                tried = tuple(dict.fromkeys((*in_float, *together)))
                if least <= self.enough or len(tried) >= len(nodes) or tried == in_float:
                    continue
                if self.most is not None and len(tried) > self.most:
                    continue
                candidate = self._with(tried)
                damage = self.damage_of(candidate)
                if damage < (1 - _LEAST_GAIN) * least and self.is_quick_enough(candidate):
                    best, least, in_float, rejected = candidate, damage, tried, ()
                    break
            else:
                rejected = (*rejected, *(node for node in group if node not in in_float))
        for node in in_float[:-1]:
            fewer = tuple(each for each in in_float if each != node)
            candidate = self._with(fewer)
            if (damage := self.damage_of(candidate)) <= least:
                best, least, in_float = candidate, damage, fewer
        return Mixed(content=best, in_float=in_float, gain=alone)

    def _with(self, in_float: Collection[str]) -> bytes:
        return self.writer.write(but=[*self.always_float, *in_float])


def _groups(content: bytes, nodes: Sequence[str], gain: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return nodes of a QDQ file that may gain together: those without weights, and the best with what reads them."""
    graph = onnx.load_from_string(content).graph
    by_name = {node.name: node for node in graph.node}
    readers: dict[str, list[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.name)

    def after(node: str) -> list[str]:
        """Return the nodes in int8 that read what ``node`` makes, across its rounding."""
        reached, names = [], list(by_name[node].output)
        while names:
            for reader in readers.get(names.pop(), []):
                if reader in nodes:
                    reached.append(reader)
                elif by_name[reader].op_type in PLUMBING:
                    names += by_name[reader].output
        return reached

    weightless = tuple(node for node in nodes if by_name[node].op_type in _ELEMENTWISE)
    groups = [weightless] if len(weightless) > 1 else []
    for node in sorted(nodes, key=lambda name: -gain[name])[:_BEST]:
        groups += [(node, reader) for reader in after(node)]
    return list(dict.fromkeys(groups))
