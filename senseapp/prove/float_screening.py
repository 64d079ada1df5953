"""How much damage each node of an int8 file does alone in int8, or each group of them, in a bounded time.

All other nodes are in float: beside all others in int8, whose damage varies with every change of the file, small shares
of it can't be told apart on few images. Damages of nodes alone in int8 hardly vary, and add up to about that of all
(seen on EfficientNet-Lite0 and ConvNeXt, where nodes ranked so and put in float left a half to a seventh).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from senseapp.core.texts import plural
from senseapp.runtimes.quantizers import Int8Node

_BEST = 8  # nodes, that are also measured with what reads them
_SHARE = 0.4  # of the time of a search: where nodes one by one would take longer, neighbours are measured together
_MOST_SHARE = 0.6  # of it, where that took longer than foreseen: what is left counts as no gain
_FEWEST_GROUPS = 2  # of neighbours
_TINY = 1e-12  # seconds: keeps a division by a time that no clock shows finite

Group = tuple[str, ...]
"""Names of nodes."""


@dataclass
class Screening:
    """Measures what nodes in float gain: the damage that they do in int8 beside all others in float.

    Attributes:
        nodes: those in int8, in order.
        damage_of: the file with only a group of them in int8, on few images.
        is_past: whether a share of the time of the search has passed.
        notes: sentences on what was not measured one by one.
    """

    nodes: Sequence[Int8Node]
    damage_of: Callable[[Group], float]
    is_past: Callable[[float], bool]
    progress: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    _all_in_float: float = 0.0

    def gains(self, seconds: float, clock: Callable[[], float]) -> tuple[dict[str, float], dict[Group, float]]:
        """Return the gain of each node, and that of each group that may be chosen; ``seconds`` are of the search."""
        names = [node.name for node in self.nodes]
        alone, gains = dict.fromkeys(names, 0.0), dict[Group, float]()
        began = clock()
        self._all_in_float = self.damage_of(())
        for group in starts(self.nodes):
            if self.is_past(_SHARE):
                break
            self.progress(f"Measuring {plural(len(group), 'part')} in int8 together")
            gains[group] = self._gain(group)
        spent = (clock() - began) / (1 + len(gains))
        affordable = int(_SHARE * seconds / max(spent, _TINY))
        if len(names) > affordable:
            gains |= (found := self._together(names, affordable))
            for group, gain in found.items():
                alone |= dict.fromkeys(group, gain / len(group))
            return alone, gains
        for place, node in enumerate(names):
            if self.is_past(_MOST_SHARE):
                break
            self.progress(f"Measuring each part in int8 · {place} of {len(names)}")
            alone[node] = gains[(node,)] = self._gain((node,))
        for group in _with_readers(self.nodes, alone):
            if not self.is_past(_MOST_SHARE):
                gains[group] = self._gain(group)
        return alone, gains

    def _gain(self, group: Group) -> float:
        return self.damage_of(group) - self._all_in_float

    def _together(self, names: Sequence[str], affordable: int) -> dict[Group, float]:
        """Return the gain of neighbours together, and of those that gain most in ever smaller groups."""
        size = -(-len(names) // max(_FEWEST_GROUPS, affordable // 2))
        found = dict[Group, float]()
        for first in range(0, len(names), size):
            if self.is_past(_MOST_SHARE):
                break
            self.progress(f"Measuring neighbours in int8 together · {first} of {len(names)}")
            group = tuple(names[first : first + size])
            found[group] = self._gain(group)
        while not self.is_past(_SHARE):
            group = max((each for each in found if len(each) > 1), key=found.__getitem__, default=())
            if not group or found[group] <= 0:
                break
            self.progress(f"Measuring the most harmful of {plural(len(group), 'neighbour')}")
            del found[group]
            for half in (group[: len(group) // 2], group[len(group) // 2 :]):
                found[half] = self._gain(half)
        self.notes.append(
            f"The network has {len(names)} parts in int8: to choose those that stay in float, neighbours were measured "
            "together, and apart where they gain most."
        )
        return found


def _with_readers(nodes: Sequence[Int8Node], gain: Mapping[str, float]) -> list[Group]:
    """Return nodes that may gain together: the best with what reads them."""
    groups = []
    for node in sorted(nodes, key=lambda each: -gain[each.name])[:_BEST]:
        groups += [(node.name, reader) for reader in node.readers]
    return list(dict.fromkeys(groups))


def starts(nodes: Sequence[Int8Node]) -> list[Group]:
    """Return groups that are measured as one: without weights, behind the last weights, with these, the first."""
    by_name = {node.name: node for node in nodes}
    before_weights: set[str] = set()
    for node in reversed(nodes):
        reads_on = [by_name[reader] for reader in node.readers if reader in by_name]
        if any(reader.has_weights or reader.name in before_weights for reader in reads_on):
            before_weights.add(node.name)
    behind = tuple(node.name for node in nodes if node.name not in before_weights)
    first = next((node.name for node in nodes if node.has_weights), None)
    found = (
        tuple(node.name for node in nodes if node.elementwise),
        tuple(node.name for node in nodes if not node.has_weights),
        tuple(name for name in behind if not by_name[name].has_weights),
        behind,
        () if first is None else (first,),
    )
    return [group for group in dict.fromkeys(found) if group]
