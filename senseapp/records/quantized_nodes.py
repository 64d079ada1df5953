"""Effect of each node's rounding on the outputs of a quantized file."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.core.codec import register
from senseapp.core.texts import first_names, plural
from senseapp.metrics import METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDamage:
    """One node of a quantized file.

    Attributes:
        name, op: of the node in the file.
        without: damage of the file with this node alone back in float.
        weights_known: whether its weights were found in the float file; else only its inputs were put back.
    """

    name: str
    op: str
    without: float
    weights_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedNodesReport:
    """The damage of a quantized file beside its float file, and of it without the rounding of each node.

    Attributes:
        reference, candidate: names of the float and of the quantized file.
        metric: that damage is measured in, of the float file's answers.
        images: number of them.
        whole: damage of the file as it is.
        rest: damage with every node in float: of what differs otherwise, as weights that were changed.
        nodes: in the order of the file.
        notes: sentences for people.
    """

    reference: str
    candidate: str
    metric: str
    images: int
    whole: float
    rest: float
    nodes: tuple[NodeDamage, ...]
    notes: tuple[str, ...] = ()

    def recovered(self, node: NodeDamage) -> float:
        """Return how much less damage there is with ``node`` in float; negative where there is more."""
        return self.whole - node.without

    @property
    def ranked(self) -> tuple[NodeDamage, ...]:
        """The nodes, those first that recover most."""
        return tuple(sorted(self.nodes, key=lambda node: node.without))

    @property
    def verdict(self) -> str:
        """One or two sentences: how good the file is, and which nodes are to blame."""
        label = METRICS[self.metric].label
        good = f"{label} of {self.candidate} is {self.whole:.4g} on {plural(self.images, 'image')}"
        blamed = [node for node in self.ranked if self.recovered(node) > self.whole / len(self.nodes)]
        if self.whole <= 0 or not blamed:
            return f"{good}; no node stands out."
        parts = first_names([f"{node.name} ({self.recovered(node) / self.whole:.0%})" for node in blamed])
        return f"{good}. Back in float alone, these recover most of it: {parts}."


for _kind in (NodeDamage, QuantizedNodesReport):
    register(_kind)
