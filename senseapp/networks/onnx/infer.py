"""Shapes and known numbers of every value of a graph, for one batch, without running it.

A graph is computed on the meta device, where tensors have shapes and no memory. What follows from shapes alone, such as
the target of a Reshape, is a real tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint, UnsupportedModel
from senseapp.networks.onnx.evaluate import Value, evaluate
from senseapp.networks.onnx.graph import Graph, GraphInput, Node
from senseapp.networks.onnx.operators.elementwise import dtype_of

Values = dict[str, Tensor]
_KNOWN = 1 << 27  # elements of all values that are known before anything runs, but for the file's own
USUAL_SIZES = (224, 256, 320, 640, 512, 384, 64, 32, 28)


def start(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Values:
    """Return the values before the first node: constants, and inputs of ``shapes`` on the meta device."""
    values = {name: each.value.to("meta") if each.held else each.value for name, each in graph.constants.items()}
    for each in graph.inputs:
        values[each.name] = torch.empty(shapes[each.name], dtype=dtype_of(each.element_type), device="meta")
    return values


def arguments(node: Node, values: Mapping[str, Tensor]) -> list[Value]:
    """Return what ``node`` reads; None for absent inputs.

    Raises InvalidCheckpoint where nothing computes an input.
    """
    missing = next((name for name in node.inputs if name and name not in values), None)
    if missing is not None:
        raise InvalidCheckpoint(
            f"Node “{node.name}” ({node.op}) reads “{missing}”, which nothing in the file computes."
        )
    return [values[name] if name else None for name in node.inputs]


def advance(nodes: Iterable[Node], values: Values, known: int = 0) -> int:
    """Add to ``values`` what ``nodes`` compute, in order.

    Args:
        nodes: in topological order.
        values: of what they read.
        known: elements of known values that were computed before.

    Returns ``known`` with those that are computed here.

    Raises:
        UnsupportedModel: an operator that is not read, or that cannot take its inputs; the message names the node.
        InvalidCheckpoint: values are larger than any memory.
    """
    for node in nodes:
        results = evaluate(node, arguments(node, values))
        values.update({name: each for name, each in zip(node.outputs, results, strict=False) if name})
        known += sum(each.numel() for each in results if isinstance(each, Tensor) and not each.is_meta)
        if known > _KNOWN:
            raise InvalidCheckpoint(
                f"Up to node “{node.name}” ({node.op}) the graph computes {known:.1e} known numbers that no image "
                "changes, more than any network needs."
            )
    return known


def infer(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Values:
    """Return every value of ``graph`` for inputs of ``shapes``: on the meta device, or real where it is known.

    Raises:
        UnsupportedModel: an operator that is not read, or that cannot take its inputs; the message names the node.
        InvalidCheckpoint: a value is larger than any memory.
    """
    values = start(graph, shapes)
    advance(graph.nodes, values)
    absent = next((name for name in graph.outputs if name not in values), None)
    if absent is not None:
        raise InvalidCheckpoint(f"The output “{absent}” is computed by no node of the file.")
    return values


def batch_of(graph: Graph) -> int | None:
    """Return the number of images that the file declares; None where it is free."""
    return _main(graph).shape[0]


def _main(graph: Graph) -> GraphInput:
    if not graph.inputs:
        raise UnsupportedModel("The file has no input: its network computes the same for every image.")
    found = max(graph.inputs, key=lambda each: len(each.shape) == 4)
    if len(found.shape) < 2:
        raise UnsupportedModel(
            f"The input “{found.name}” has no shape in the file; export it with the shape of a batch."
        )
    return found


def input_shapes(graph: Graph, batch: int, size: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Return shapes of all inputs for ``batch`` images of ``size`` (height, width), where the file leaves them free."""
    declared = batch_of(graph)
    shapes = {}
    for each in graph.inputs:
        lengths = list(each.shape)
        free = iter((*size, 1, 1, 1))
        channels_last = len(lengths) == 4 and lengths[1] is None and lengths[3] in (1, 3, 4)
        for axis, length in enumerate(lengths):
            if axis == 0:
                lengths[0] = batch if length is None or length == declared else length
            elif length is None:
                lengths[axis] = 3 if axis == 1 and len(lengths) == 4 and not channels_last else next(free)
        shapes[each.name] = tuple(length or 1 for length in lengths)
    return shapes


def working_size(graph: Graph) -> tuple[int, int]:
    """Return a (height, width) that the graph takes where it leaves lengths free: the first usual one that fits.

    Raises UnsupportedModel with what the graph says of the most usual size, where none fits.
    """
    if all(None not in each.shape[1:] for each in graph.inputs):
        return 1, 1  # is not used
    batch = batch_of(graph) or 1
    first: UnsupportedModel | None = None
    for length in USUAL_SIZES:
        try:
            infer(graph, input_shapes(graph, batch, (length, length)))
        except UnsupportedModel as error:
            first = first or error
        else:
            return length, length
    assert first is not None
    raise first
