"""QDQ files as processors of the other kind compute them: with sums of products that saturate, or without.

Kernels for AVX2 and AVX-512 without VNNI add the products of two neighbouring weights of 8 bits with unsigned inputs in
16 bits (``VPMADDUBSW``). Depthwise kernels and those for unsigned weights do not.
"""

import math
from typing import Any

import numpy as np
import onnx.parser
import torch
from numpy.typing import NDArray
from onnx import NodeProto
from torch import Tensor
from torch.nn import functional

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.graph import OnnxGraph, attributes_of, label
from senseapp.runtimes.call_times import saturates
from senseapp.runtimes.onnxruntime.int8 import multiplies_integers
from senseapp.runtimes.onnxruntime.rounding.products import KINDS, WeightedNode
from senseapp.runtimes.onnxruntime.rounding.qdq import FUSED, ROUNDING

_LARGEST_INPUT, _ENDS = 255, (-(2.0**15), 2.0**15 - 1)
_MOST_NUMBERS = 2**25  # of the kernels of _patches
_OPSET = 13  # whose ReduceSum reads its axes
_USUAL = {"alpha": 1.0, "beta": 1.0, "transA": 0}
Array = NDArray[Any]
Pairs = tuple[Tensor, Tensor]
_CORRECTION = """
pairs (float[N] codes) => (float[N] y) {{
    as_float = Cast <to = 1> (codes)
    centred = Sub (as_float, zero)
    patches = {patches} (centred{kernels})
    seen = Add (patches, zero)
    first = Gather <axis = {channels}> (seen, rows0)
    second = Gather <axis = {channels}> (seen, rows1)
    one = Mul (first, weights0)
    other = Mul (second, weights1)
    pair = Add (one, other)
    clipped = Clip (pair, low, high)
    less = Sub (clipped, pair)
    total = ReduceSum <keepdims = 0> (less, axes)
    change = Mul (total, scale)
    y = Add (sum, change)
}}
"""
"""Adds to the ``sum`` of a product, (N, O, H, W) or (..., O), its pairs in 16 bits less these pairs as they are."""


def on_other_processors(content: bytes) -> bytes | None:
    """Return a QDQ file that computes, in float between roundings, what processors of the other kind do with this one.

    That is without saturation where it saturates here, and with it where it does not. None where both are alike.

    Raises UnsupportedModel if it has operators of integers, or a product that is not computed here as it is there.
    """
    if not multiplies_integers(content):
        return None
    if saturates():
        return content
    graph = OnnxGraph(content)
    found = [node for node in list(graph.nodes) if node.op_type in KINDS and _saturate(graph, node)]
    return graph.content() if found else None


def _saturate(graph: OnnxGraph, node: NodeProto) -> bool:
    """Add to the output of ``node`` what saturation changes in it; return whether it can change anything."""
    data, weight = (graph.maker(name) for name in node.input[:2])
    if data is None or weight is None or {data.op_type, weight.op_type} != {ROUNDING[1]}:
        return False
    integers, attributes, is_conv = graph.array(weight.input[0]), attributes_of(node), node.op_type == "Conv"
    if integers is None or integers.dtype != np.int8 or (not is_conv and integers.ndim != 2):
        return False
    if is_conv and not _is_rounded(graph, node.output[0]):  # onnxruntime computes it in float
        return False
    values = torch.from_numpy(integers.astype(np.float32))
    product = WeightedNode(
        node="", kind=node.op_type, input="", weight="", bias=None, values=values, offsets=None, _attributes=attributes
    )
    pairs = _pairs(product)
    if pairs is None:
        return False
    wanted = data.input[1], weight.input[1], *data.input[2:3]  # scales, and the zero point if there is one
    numbers = [found for name in wanted if (found := graph.array(name)) is not None]
    alike = all(attributes.get(name, value) == value for name, value in _USUAL.items()) and len(numbers) == len(wanted)
    alike = alike and values[0, 0].numel() * values[0].numel() * product.groups <= _MOST_NUMBERS
    if graph.opset < _OPSET or not alike or any(each.dtype != np.uint8 for each in numbers[2:]):
        raise UnsupportedModel(f"What it does there is not known: {label(node)} is not computed here as it is there.")
    _insert(graph, node, product, pairs, data.input[0], numbers)
    return True


def _insert(
    graph: OnnxGraph, node: NodeProto, product: WeightedNode, pairs: Pairs, codes: str, numbers: list[Array]
) -> None:
    """Insert :data:`_CORRECTION` behind a product of ``codes``; ``numbers`` are its scales and their zero point."""
    (weights, rows), own = pairs, graph.fresh(f"{node.output[0]}.saturating")
    is_conv, shape = product.kind == "Conv", product.values.shape
    spatial = (1,) * (len(shape) - 2) if is_conv else ()
    stored: dict[str, Any] = {"zero": sum(numbers[2:]), "low": _ENDS[0], "high": _ENDS[1]}
    stored["scale"] = (numbers[0] * numbers[1]).reshape(-1, *spatial)
    form: dict[str, Any] = {"patches": "Identity", "kernels": "", "channels": -1}
    if is_conv:
        form |= {"patches": f"Conv <group = {product.groups * shape[1]}>", "kernels": ", all", "channels": 1}
        stored["all"], rows = _patches(product, rows)
    for side in range(2):
        stored[f"weights{side}"] = weights[:, :, side].reshape(*weights.shape[:2], *spatial)
    places = {"rows0": rows[:, :, 0], "rows1": rows[:, :, 1], "axes": [2 if is_conv else -1]}
    for name, each in (stored | places).items():
        graph.store(f"{own}.{name}", np.asarray(each, np.int64 if name in places else np.float32))
    made, names = list(onnx.parser.parse_graph(_CORRECTION.format(**form)).node), {"codes": codes}
    names["y"], node.output[0] = node.output[0], f"{own}.sum"
    for each in made:
        for side in (each.input, each.output):
            side[:] = [names.get(name, f"{own}.{name}") for name in side]
        if each.op_type == "Conv":
            each.attribute.extend(one for one in node.attribute if one.name not in ("group", "kernel_shape"))
    graph.insert(*made, after=node)


def _is_rounded(graph: OnnxGraph, value: str) -> bool:
    """Return whether a value is rounded, or all that is computed with the node before it."""
    readers = graph.readers(value)
    while len(readers) == 1 and readers[0].op_type in FUSED:
        readers = graph.readers(readers[0].output[0])
    return any(each.op_type == ROUNDING[0] for each in readers)


def _pairs(product: WeightedNode) -> Pairs | None:
    """Return each output's pairs of weights that can saturate, (O, m, 2), and their rows of all groups."""
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


def _patches(product: WeightedNode, rows: Tensor) -> tuple[Array, Tensor]:
    """Return kernels that make all that a kernel reads at each place channels, and ``rows`` as numbers of these."""
    width, kernel = product.values.shape[1], product.values.shape[2:]
    places = math.prod(kernel)
    kernels = np.tile(np.eye(places, dtype=np.float32), (product.groups * width, 1)).reshape(-1, 1, *kernel)
    group, inside = rows // (places * width), rows % (places * width)
    return kernels, (group * width + inside % width) * places + inside // width
