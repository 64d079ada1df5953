"""Let a file that was exported for one image take any number: in targets of Reshape, class tokens and sizes.

The graph is inferred for two images. A node that would not follow is rewritten from the shapes that it has for one;
``check.py`` compares the result with onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.infer import Folding, Values, advance, start
from senseapp.networks.onnx.torch_graph import Constant, Node, TorchGraph


def free_batch(
    graph: TorchGraph, reference: Values, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[TorchGraph, Values]:
    """Return ``graph`` rewritten so that it takes inputs of ``shapes``, with its values for them.

    Args:
        graph: as it was exported.
        reference: values for one image.
        shapes: of the inputs, for two images.

    Raises UnsupportedModel where a node does not follow, or an output is not one per image.
    """
    freeing = _Freeing(reference=reference, values=start(graph, shapes), constants=dict(graph.constants))
    nodes: list[Node] = []
    folding = Folding()
    for node in graph.nodes:
        followed = list(freeing.followed(node))
        advance(followed, freeing.values, folding)
        nodes.extend(followed)
    for name in graph.outputs:
        old, new = reference[name].shape, freeing.values[name].shape
        if not old or tuple(new) != (2 * old[0], *old[1:]):
            raise UnsupportedModel(f"The output “{name}” is {list(new)} for two images, not one per image.")
    return replace(graph, nodes=tuple(nodes), constants=freeing.constants), freeing.values


@dataclass(slots=True, kw_only=True)
class _Freeing:
    reference: Values
    values: Values
    constants: dict[str, Constant]
    added: int = 0

    def followed(self, node: Node) -> Iterator[Node]:
        """Yield ``node``, or what takes its place."""
        grown = {name: axis for name in node.inputs if name and (axis := self._grown(name)) is not None}
        if node.op == "Concat" and grown:
            yield from self._joined(node, *next(iter(grown.items())))
        elif node.op in ("Reshape", "Expand", "Resize") and node.inputs[0] in grown:
            change = {"Reshape": self._reshaped, "Expand": self._expanded, "Resize": self._resized}[node.op]
            yield change(node, grown[node.inputs[0]])
        else:
            yield node

    def _grown(self, name: str) -> int | None:
        """Return the axis that grew with the images; None where there is not exactly one."""
        old, new = self.reference[name].shape, self.values[name].shape
        axes = [axis for axis, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
        return axes[0] if len(old) == len(new) and len(axes) == 1 else None

    def _reshaped(self, node: Node, axis: int) -> Node:
        """Give the −1 to the axis of the images: that with as many elements before it as in the input."""
        before = math.prod(self.reference[node.inputs[0]].shape[:axis])
        target = list(self.reference[node.outputs[0]].shape)
        places = [place for place in range(len(target)) if math.prod(target[:place]) == before]
        return self._with(node, 1, [*target[: places[0]], -1, *target[places[0] + 1 :]]) if places else node

    def _expanded(self, node: Node, axis: int) -> Node:
        lengths = self.values[node.inputs[1]]
        place = lengths.numel() - self.reference[node.inputs[0]].ndim + axis
        if lengths.is_meta or place < 0:
            return node
        stored = lengths.tolist()
        return self._with(node, 1, [*stored[:place], 1, *stored[place + 1 :]])

    def _resized(self, node: Node, axis: int) -> Node:
        sizes = self.constants.get("".join(node.inputs[3:4]))
        if sizes is None or node.attributes.get("axes") is not None or sizes.value.numel() <= axis:
            return node
        axes = [each for each in range(sizes.value.numel()) if each != axis]
        changed = self._with(node, 3, sizes.value[axes].tolist())
        return replace(changed, attributes={**node.attributes, "axes": axes}, version=max(18, node.version))

    def _joined(self, node: Node, like: str, axis: int) -> Iterator[Node]:
        """Repeat what is the same for every image, such as a class token, for the images of ``like``."""
        inputs = []
        for name in node.inputs:
            if self._grown(name) is None and self.values[name].shape[axis] == 1:
                repeated = self._name("repeated")
                yield replace(
                    node,
                    name=repeated,
                    op="ExpandLike",
                    inputs=(name, like),
                    outputs=(repeated,),
                    scope="",
                    attributes={"axis": axis},
                )
                name = repeated
            inputs.append(name)
        yield replace(node, inputs=tuple(inputs))

    def _with(self, node: Node, position: int, numbers: list[int]) -> Node:
        name = self._name("shape")
        self.constants[name] = Constant(value=torch.tensor(numbers, dtype=torch.int64))
        self.values[name] = self.constants[name].value
        return replace(node, inputs=(*node.inputs[:position], name, *node.inputs[position + 1 :]))

    def _name(self, what: str) -> str:
        self.added += 1
        return f"free batch {what} {self.added}"  # has a space: no exporter names a value so
