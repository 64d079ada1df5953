"""The normalised graph of an ONNX file: plain values that inference, cutting and building read and rewrite."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from senseapp.core.errors import UnsupportedModel


class UnreadNode(UnsupportedModel):
    """A node that the operator table lacks, and that onnxruntime may compute instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator call.

    Attributes:
        name: unique in its graph.
        op, version: operator type and opset version of the default domain.
        inputs, outputs: names of values; empty where an optional one is absent.
        attributes: numbers, text, lists of them, tensors and bodies, by name.
        scope: dotted path of the module that the exporter found the node in; None where the file has none.
        source: the node's own bytes, where onnxruntime computes it; empty for operators of the table.
        captured: names by which its bodies read the last of ``inputs``, which the node itself does not list.
    """

    name: str
    op: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    scope: str | None = None
    source: bytes = field(default=b"", repr=False)
    captured: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"“{self.name}” ({self.op})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A tensor that does not depend on the images.

    Attributes:
        value: on the CPU; float16 is read as float32.
        initializer: the tensor of the file that holds the same numbers; empty where they were computed.
        order, reshaped: how the axes of that tensor were permuted, and whether it was then brought to another shape.
        weight: whether it is a tensor of the file, perhaps in another form, and not computed by the graph.
    """

    value: Tensor
    initializer: str = ""
    order: tuple[int, ...] = ()
    reshaped: bool = False
    weight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """An input of the graph: ``shape`` has an int for a fixed length, None for a free one; empty if undeclared."""

    name: str
    shape: tuple[int | None, ...]
    element_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchGraph:
    """A graph in topological order, whose constants are all in ``constants``.

    A branch of an ``If`` has no inputs, but reads values of the graph around it by their names. Its own names begin
    with those of the ``If`` and of the branch, so that they are no others'.

    Initializers that are listed as inputs are not among these. ``notes`` are sentences on how the file was read.
    """

    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: dict[str, Constant] = field(repr=False)
    notes: tuple[str, ...] = ()

    def producers(self) -> dict[str, Node]:
        """Return the node that computes each value."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    def needed_for(self, outputs: Iterable[str]) -> Self:
        """Return the part of the graph that computes ``outputs``: these, and only the inputs that they depend on."""
        outputs = tuple(outputs)
        wanted, kept = set(outputs), []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        constants = {name: each for name, each in self.constants.items() if name in wanted}
        inputs = tuple(each for each in self.inputs if each.name in wanted) or self.inputs
        return replace(self, inputs=inputs, outputs=outputs, nodes=tuple(reversed(kept)), constants=constants)
