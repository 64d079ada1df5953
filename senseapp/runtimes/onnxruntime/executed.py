"""Nodes of an ONNX file that a runtime executes: which compute in integers, and the products of each call."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.records.executed import ExecutedNode
from senseapp.runtimes.call_times import Kernel
from senseapp.runtimes.onnxruntime.float_graph import node_names
from senseapp.runtimes.onnxruntime.int8 import int8_nodes
from senseapp.runtimes.onnxruntime.rounding.qdq import ROUNDING, WEIGHTED
from senseapp.runtimes.onnxruntime.runtime import profiled
from senseapp.runtimes.onnxruntime.timing import PRODUCT_NUMBER, numbered

_MULTIPLIES = re.compile(r"conv|gemm|matmul|attention", re.IGNORECASE)
_CONVERSIONS = frozenset(
    {*ROUNDING, "Cast", "Convert", "ReorderInput", "ReorderOutput", "Reorder", "Input", "Output", "Const"}
)

_NO_PRODUCT = -1


def executed_nodes(content: bytes, kernels: Callable[[bytes], Sequence[Kernel]]) -> tuple[ExecutedNode, ...]:
    """Return the nodes that a runtime executes in a call on one image, without those that only convert numbers.

    A product is one node, under its name in the file, whatever the runtime computes with it; ``kernels`` are those that
    a file of :func:`.numbered` products has in the runtime.
    """
    graph = OnnxGraph(content)
    for node, name in zip(graph.nodes, node_names(graph.nodes), strict=True):
        node.name = name
    file, kinds = graph.content(), {node.name: node.op_type for node in graph.nodes}
    macs, rounded = _macs(file), set(int8_nodes(file))
    names, found = list(macs), defaultdict[int, list[Kernel]](list)
    for kernel in kernels(numbered(file, names)):
        places = {int(own[1]) for part in (kernel.parts or (kernel.name,)) if (own := PRODUCT_NUMBER.match(part))}
        for place in places if kernel.kind in _CONVERSIONS else places or {_NO_PRODUCT}:
            found[place].append(kernel)
    others = found.pop(_NO_PRODUCT, [])
    nodes = [ExecutedNode(name=each.name, kind=each.kind, in_integers=each.in_integers) for each in others]
    for place, name in enumerate(names):
        multiplying = [each for each in found[place] if _MULTIPLIES.search(each.kind)] or found[place]
        inside = any(each.in_integers for each in multiplying)
        product = ExecutedNode(name=name, kind=kinds[name], in_integers=inside, macs=macs[name])
        nodes.append(replace(product, is_rounded=name in rounded))
    return tuple(nodes)


def _macs(content: bytes) -> dict[str, int]:
    """Return the multiply-accumulates of each product by name, from the shapes of a call node by node."""
    return {
        name: _of_product(
            about["op_name"], *_shapes(about["input_type_shape"]), *_shapes(about["output_type_shape"][:1])
        )
        for name, about, _ in profiled(content, threads=1, batch=1, runs=1, optimized=False)
        if about["op_name"] in WEIGHTED
    }


def _shapes(declared: Sequence[dict[str, Any]]) -> list[Sequence[int]]:
    return [shape for each in declared[:2] for shape in each.values()]


def _of_product(kind: str, read: Sequence[int], weight: Sequence[int], made: Sequence[int]) -> int:
    """Return the products of a node that reads such an input and weight, which a transposed one turns round."""
    if kind == "Conv":
        return math.prod(made) * math.prod(weight[1:])
    if kind == "ConvTranspose":
        return math.prod(read) * math.prod(weight[1:])
    return math.prod(made) * (math.prod(read) // made[0] if kind == "Gemm" else read[-1])
