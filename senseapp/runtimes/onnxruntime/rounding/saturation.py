"""QDQ files as processors of the other kind compute them: with sums of products that saturate, or without.

Kernels for AVX2 and AVX-512 without VNNI add the products of two neighbouring weights of 8 bits with unsigned inputs in
16 bits (``VPMADDUBSW``). Depthwise kernels and those for unsigned weights do not.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto, helper
from torch import Tensor
from torch.nn import functional

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.graph import OnnxGraph, attributes_of, label
from senseapp.runtimes.call_times import saturates
from senseapp.runtimes.onnxruntime.int8 import multiplies_integers
from senseapp.runtimes.onnxruntime.rounding.products import KINDS, WeightedNode
from senseapp.runtimes.onnxruntime.rounding.qdq import FUSED, ROUNDING

_LARGEST_INPUT, _ENDS = 255, (-(2.0**15), 2.0**15 - 1)
_OPSET = 13  # whose ReduceSum reads its axes
_USUAL = {"alpha": 1.0, "beta": 1.0, "transA": 0}


def on_other_processors(content: bytes) -> bytes | None:
    """Return a QDQ file that computes, in float between roundings, what processors of the other kind do with this one.

    That is without saturation where it saturates here, and with it where it does not. None where both are alike.

    Raises:
        UnsupportedModel: it has operators of integers, or a product that is not computed here as it is there.
    """
    if not multiplies_integers(content):
        return None
    return content if saturates() else _saturating(OnnxGraph(content))


def _saturating(graph: OnnxGraph) -> bytes | None:
    """Return a file with what saturation takes or adds behind each product; None where no sum can saturate."""
    found = [node for node in list(graph.nodes) if node.op_type in KINDS and _saturate(graph, node)]
    return graph.content() if found else None


def _saturate(graph: OnnxGraph, node: NodeProto) -> bool:
    """Add to the output of ``node`` what saturation changes in it; return whether it can change anything."""
    data, weight = (graph.maker(name) for name in node.input[:2])
    if data is None or weight is None or {data.op_type, weight.op_type} != {ROUNDING[1]}:
        return False
    integers, attributes = graph.array(weight.input[0]), attributes_of(node)
    if integers is None or integers.dtype != np.int8 or (node.op_type != "Conv" and integers.ndim != 2):
        return False
    if node.op_type == "Conv" and not _is_rounded(graph, node.output[0]):  # onnxruntime computes it in float
        return False
    product = WeightedNode(
        node=node.name,
        kind=node.op_type,
        input=node.input[0],
        weight=node.input[1],
        bias=None,
        values=torch.from_numpy(integers.astype(np.float32)),
        offsets=None,
        _attributes=attributes,
    )
    pairs = _pairs(product)
    if pairs is None:
        return False
    scale, other_scale = (graph.array(each.input[1]) for each in (data, weight))
    zero = graph.array(data.input[2]) if len(data.input) > 2 else np.uint8(0)
    usual = all(attributes.get(name, value) == value for name, value in _USUAL.items())
    if (
        scale is None
        or other_scale is None
        or zero is None
        or zero.dtype != np.uint8
        or graph.opset < _OPSET
        or not usual
    ):
        raise UnsupportedModel(f"What it does there is not known: {label(node)} is not computed here as it is there.")
    _Correction(graph, node, product, pairs).add(data.input[0], float(zero), scale * other_scale)
    return True


def _is_rounded(graph: OnnxGraph, value: str) -> bool:
    """Return whether a value is rounded, or all that is computed with the node before it."""
    readers = graph.readers(value)
    while len(readers) == 1 and readers[0].op_type in FUSED:
        readers = graph.readers(readers[0].output[0])
    return any(each.op_type == ROUNDING[0] for each in readers)


def _pairs(product: WeightedNode) -> tuple[Tensor, Tensor] | None:
    """Return the pairs of weights of each output, (O, m, 2), whose sum can saturate, and their rows, (O, m, 2).

    Rows are those of inputs of all groups, (G · K); what fills outputs of fewer pairs up are zeros. None without pairs.
    """
    if product.depthwise:
        return None
    matrix = product.matrix(product.values)  # (G, O/G, K)
    groups, _, width = matrix.shape
    weights = functional.pad(matrix, (0, width % 2)).reshape(groups, matrix.shape[1], -1, 2)  # (G, O/G, K/2, 2)
    ends = _LARGEST_INPUT * weights.clamp_max(0).sum(3), _LARGEST_INPUT * weights.clamp_min(0).sum(3)
    able = (ends[0] < _ENDS[0]) | (ends[1] > _ENDS[1])
    most = int(able.sum(2).max())
    if not most:
        return None
    first = able.to(torch.int8).argsort(dim=2, descending=True, stable=True)[:, :, :most]  # (G, O/G, m)
    chosen = (weights * able[..., None]).gather(2, first[..., None].expand(*first.shape, 2))
    rows = torch.stack([2 * first, (2 * first + 1).clamp_max(width - 1)], dim=3)
    rows += width * torch.arange(groups)[:, None, None, None]
    return chosen.flatten(0, 1), rows.flatten(0, 1)


class _Correction:
    """Nodes that add to the output of a product its sums of pairs in 16 bits, less these sums as they are.

    Args:
        graph: of the file.
        node: the product.
        product: its weights, in integers.
        pairs: see :func:`_pairs`.
    """

    def __init__(self, graph: OnnxGraph, node: NodeProto, product: WeightedNode, pairs: tuple[Tensor, Tensor]) -> None:
        self._graph, self._node, self._product, self._pairs = graph, node, product, pairs
        self._output, self._made = node.output[0], list[NodeProto]()

    def add(self, integers: str, zero: float, scale: NDArray[Any]) -> None:
        """Insert them; inputs are ``integers`` less ``zero``, and ``scale`` is that of the output, for each channel."""
        (weights, rows), is_conv = self._pairs, self._product.kind == "Conv"
        spatial = (1,) * (self._product.values.ndim - 2) if is_conv else ()
        zeros = self._stored("zero", zero)
        values = self._node_of("Sub", self._node_of("Cast", integers, to=1), zeros)  # less zero, so that pads are zeros
        if is_conv:
            values, rows = self._patches(values, rows)
        values, terms = self._node_of("Add", values, zeros), list[str]()
        for side in range(2):
            own = self._stored(f"rows{side}", rows[:, :, side], np.int64)
            factor = self._stored(f"weights{side}", weights[:, :, side].reshape(*weights.shape[:2], *spatial))
            terms.append(self._node_of("Mul", self._node_of("Gather", values, own, axis=1 if is_conv else -1), factor))
        total = self._node_of("Add", *terms)  # (N, O, m, H, W), or (..., O, m)
        clipped = self._node_of("Clip", total, *(self._stored(f"end{place}", end) for place, end in enumerate(_ENDS)))
        axes = self._stored("axes", [2 if is_conv else -1], np.int64)
        change = self._node_of("ReduceSum", self._node_of("Sub", clipped, total), axes, keepdims=0)
        change = self._node_of("Mul", change, self._stored("scale", scale.reshape(-1, *spatial)))
        self._node.output[0] = self._graph.fresh(f"{self._output}.unsaturated")
        self._made.append(helper.make_node("Add", [self._node.output[0], change], [self._output]))
        self._graph.insert(*self._made, after=self._node)

    def _patches(self, values: str, rows: Tensor) -> tuple[str, Tensor]:
        """Return all that a kernel reads at each place as channels, and ``rows`` as numbers of these channels."""
        width, kernel = self._product.values.shape[1], self._product.values.shape[2:]
        places, channels = math.prod(kernel), self._product.groups * width
        whole = np.tile(np.eye(places, dtype=np.float32), (channels, 1)).reshape(-1, 1, *kernel)
        known = [each for each in self._node.attribute if each.name not in ("group", "kernel_shape")]
        made = self._node_of("Conv", values, self._stored("patches", whole), group=channels)
        self._made[-1].attribute.extend(known)
        group, inside = rows // (places * width), rows % (places * width)
        return made, (group * width + inside % width) * places + inside // width

    def _stored(self, name: str, values: Any, dtype: type = np.float32) -> str:
        own = self._graph.fresh(f"{self._output}.{name}")
        self._graph.store(own, np.asarray(values, dtype))
        return own

    def _node_of(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = self._graph.fresh(f"{self._output}.{kind}{len(self._made)}")
        self._made.append(helper.make_node(kind, inputs, [output], **attributes))
        return output
