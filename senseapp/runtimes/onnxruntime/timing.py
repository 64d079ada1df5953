"""Time of each layer in a runtime on this machine, in float and in int8, and of a border between them.

The runtime's own profile tells the time of each kernel of the whole float file and of the file all in int8, which other
programs on the machine hardly change; a kernel belongs to the layer whose product it computes. Both files, run in
turns, say by how much a call takes longer than its kernels. What stands at a border (rounding, and another order of
memory) costs so much for each value of a tensor. What the int8 file takes besides its products, rounding around
operations that stay in float, is shared out among them by their outputs.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions import DENSE_BITS
from senseapp.networks.onnx.graph import read_by
from senseapp.records.deployment import FLOAT, INT8, INT8_BITS, Conversion, LayerTime, LayerTimes, OperatorTime
from senseapp.runtimes.call_times import quick_seconds, times
from senseapp.runtimes.foreign import RuntimeNetwork
from senseapp.runtimes.onnxruntime.bench import (
    BORDER,
    PRODUCT,
    Kernel,
    Profiler,
    border_bench,
    border_rates,
    border_seconds,
    by_product,
)
from senseapp.runtimes.onnxruntime.int8 import int8_nodes
from senseapp.runtimes.onnxruntime.qdq import QUANTIZED
from senseapp.runtimes.onnxruntime.rounding.ranges import tensors_of

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_BORDERS = tuple(kind for kind in BORDER if kind != "Transpose")  # which attention has in float too
_INT8_KIND = re.compile(r"^(?:QLinear|DynamicQuantize|Fused|Q(?=Gemm|Attention))|Integer(?:ToFloat)?$")
_FUSED_BEHIND = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Add", "Mul"})
"""Operators that runtimes compute with the product before them."""
_TURNS = 15  # calls of each file, of which a quick one counts, see quick_seconds


def time_layers(
    network: bytes, int8: bytes, owners: Mapping[str, str], *, profiler: Profiler, threads: int = 1, batch: int = 1
) -> LayerTimes:
    """Return the times of layers of a float ``network``, whose file in ``int8`` has all of them in int8.

    ``owners`` has the layer that a node belongs to, for the nodes of layers.

    Raises:
        InvalidSpec: none of them is a product that onnxruntime computes in int8.
    """
    model = onnx.load_from_string(network)
    graph, shapes = model.graph, shapes_of(model, batch)
    products = dict(_products(graph, owners, shapes))
    if not products:
        raise InvalidSpec("No layer of this network is one whose time in int8 can be taken.")
    names = [name for name, _ in products.values()]
    kernels = [profiler.kernels(_numbered(each, names), threads, batch) for each in (network, int8)]
    walls = wall_seconds([profiler.open(file, threads) for file in (network, int8)], shapes[graph.input[0].name])
    slower = walls / np.array([sum(kernel.seconds for kernel in each) for each in kernels])
    (real, real_rest), (whole, whole_rest) = (
        _scaled(each, len(names), rate) for each, rate in zip(kernels, slower, strict=True)
    )
    sizes = np.array([math.prod(shape) for _, shape in products.values()])
    whole += (whole_rest - real_rest) * sizes / sizes.sum()  # with what the int8 file rounds between products
    found = [
        LayerTime(layer=layer, level=level, seconds=float(max(seconds, 0.0)))
        for level, spent in ((DENSE_BITS, real), (float(INT8_BITS), whole))
        for layer, seconds in zip(products, spent, strict=True)
    ]
    largest = max((shape for _, shape in products.values()), key=math.prod)
    at_borders = profiler.kernels(border_bench(largest), threads, 1)
    rates = border_rates([kernel for each in (*kernels, at_borders) for kernel in each])
    edges = crossings(graph, owners, set(int8_nodes(int8)), shapes)
    return LayerTimes(
        times=tuple(found),
        other_seconds=real_rest,
        conversions=tuple(
            Conversion(first=first, second=second, seconds=float(slower.mean()) * count * border_seconds(rates, dims))
            for (first, second), (count, dims) in edges.items()
        ),
        source=f"measured on {profiler.machine()}",
    )  # fmt: skip


def time_products(
    network: bytes, owners: Mapping[str, str], *, profiler: Profiler, threads: int = 1, batch: int = 1
) -> tuple[dict[str, tuple[float, int]], float]:
    """Return the seconds of each layer's kernels in a float ``network`` with the values that it makes; and of the rest.

    Raises:
        InvalidSpec: none of ``owners``, layers by node, is a product.
    """
    model = onnx.load_from_string(network)
    products = dict(_products(model.graph, owners, shapes_of(model, batch)))
    if not products:
        raise InvalidSpec("No layer of this network is one whose time can be taken.")
    kernels = profiler.kernels(_numbered(network, [name for name, _ in products.values()]), threads, batch)
    seconds, rest = _scaled(kernels, len(products), 1.0)
    sizes = (math.prod(shape) for _, shape in products.values())
    return dict(zip(products, zip(seconds.tolist(), sizes, strict=True), strict=True)), rest


def _numbered(content: bytes, names: Sequence[str]) -> bytes:
    """Return a file in which the nodes called ``names`` have names by which their kernels are known.

    A kernel that computes a product with the operations behind it may be called as the tensor that it returns, so
    these tensors have such names, too.
    """
    model = onnx.load_from_string(content)
    places, graph = {name: place for place, name in enumerate(names)}, model.graph
    inside = {name for node in graph.node for name in read_by(node) if name not in node.input}
    owners, renamed = dict[str, int](), dict[str, str]()
    for node in graph.node:
        own = places.get(node.name)
        if own is None and node.op_type in _FUSED_BEHIND:
            own = next((owners[name] for name in reversed(node.input) if name in owners), None)
        elif own is not None:
            node.name = f"{PRODUCT}{own}"
        if own is None:
            continue
        for name in node.output:
            owners[name] = own
            if name not in inside:
                renamed[name] = f"{PRODUCT}{own}.{len(renamed)}"
    for node in graph.node:
        for side in (node.input, node.output):
            side[:] = [renamed.get(name, name) for name in side]
    for value in (*graph.output, *graph.value_info):
        value.name = renamed.get(value.name, value.name)
    return bytes(model.SerializeToString())


def _scaled(kernels: Sequence[Kernel], count: int, rate: float) -> tuple[NDArray[np.float64], float]:
    """Return the seconds of the kernels of each product, and of all others, times ``rate``."""
    products = rate * np.array(by_product(kernels, count))
    return products, rate * sum(kernel.seconds for kernel in kernels) - float(products.sum())


def operators(content: bytes, *, profiler: Profiler, threads: int = 1, batch: int = 1) -> tuple[OperatorTime, ...]:
    """Return the seconds of all kernels of a file by kind, called as in float: a ``QLinearConv`` is a ``Conv``."""
    calls: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for kernel in profiler.kernels(content, threads, batch):
        kind = _INT8_KIND.sub("", kernel.kind)
        calls[kind] += 1
        seconds[kind] += kernel.seconds
    return tuple(
        OperatorTime(kind=kind, calls=calls[kind], seconds=spent, is_border=kind in _BORDERS)
        for kind, spent in seconds.items()
    )


def shapes_of(model: onnx.ModelProto, batch: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in a call on ``batch`` images; what the file does not tell, a call does."""
    described = _described(model.graph)
    if all(_is_told(each) for each in described):
        return {each.name: tuple(_length(dim, batch) for dim in _dims(each)) for each in described}
    fixed = onnx.ModelProto()  # with a known batch, sizes that nodes compute from others can be told
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    for each in fixed.graph.output:
        each.type.tensor_type.ClearField("shape")
    for each in fixed.graph.input:
        for dim in _dims(each)[:1]:
            dim.dim_value = _length(dim, batch)
    inferred = _described(onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph)
    found = {each.name: tuple(_length(dim, batch) for dim in _dims(each)) for each in inferred if _is_told(each)}
    made = {name for node in fixed.graph.node for name in node.output if name} - found.keys()
    if made:
        images = torch.zeros(found[fixed.graph.input[0].name])
        values = next(iter(tensors_of(fixed.SerializeToString(), [images], sorted(made))))
        found |= {name: tuple(value.shape) for name, value in values.items()}
    return found


def _described(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.value_info, *graph.output]


def _is_told(each: onnx.ValueInfoProto) -> bool:
    """Return whether the shape of a tensor is told but for its first length, which may be that of the batch."""
    return each.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in _dims(each)[1:])


def _dims(each: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = each.type.tensor_type.shape.dim
    return dims


def _length(dim: onnx.TensorShapeProto.Dimension, batch: int) -> int:
    return int(dim.dim_value) if dim.HasField("dim_value") else batch


def _products(
    graph: onnx.GraphProto, owners: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Yield layers that are products with weights, each with the name of its node and the shape of its output."""
    weights = {each.name for each in graph.initializer}
    seen: set[str] = set()
    for node in graph.node:
        layer = owners.get(node.name)
        if node.op_type not in _PRODUCTS or layer is None or layer in seen or node.input[1] not in weights:
            continue
        if node.output[0] in shapes:
            seen.add(layer)
            yield layer, (node.name, shapes[node.output[0]])


def wall_seconds(opened: Sequence[RuntimeNetwork], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the seconds of a quick call of each network, run in turns on images of ``shape``.

    On a busy machine most calls of some milliseconds are interrupted, and a longer one oftener, while a profile tells
    what kernels take undisturbed: medians would make the slower network take longer than its kernels than the other.
    """
    return np.array([quick_seconds(each) for each in times(opened, torch.zeros(shape), turns=_TURNS)])


def crossings(
    graph: onnx.GraphProto, owners: Mapping[str, str], ends: set[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[tuple[str, str], tuple[int, int]]:
    """Return pairs of neighbours that may differ, each with the values and dimensions of the tensor between them.

    ``ends`` are the nodes that can compute in int8; what lies between two of them passes values on as they are. What
    onnxruntime always computes in float parts them: what that costs is in the times of layers.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    carried: dict[str, tuple[str, tuple[int, ...]]] = {graph.input[0].name: (FLOAT, shapes[graph.input[0].name])}
    for node in graph.node:
        sources = [carried[name] for name in node.input if name in carried]
        if node.op_type not in QUANTIZED:
            continue
        if node.name in ends or node.name in owners:
            own = owners.get(node.name, INT8)
            for source, shape in sources:
                _add(found, source, own, shape)
            carried |= {name: (own, shapes.get(name, ())) for name in node.output}
        elif sources:
            carried |= {name: (sources[0][0], shapes.get(name, sources[0][1])) for name in node.output}
    for output in graph.output:
        if output.name in carried:
            source, shape = carried[output.name]
            _add(found, source, FLOAT, shape)
    return found


def _add(found: dict[tuple[str, str], tuple[int, int]], first: str, second: str, shape: tuple[int, ...]) -> None:
    if first != second and {first, second} != {FLOAT, INT8}:
        count = found.get((first, second), (0, 0))[0]
        found[first, second] = count + math.prod(shape or (0,)), len(shape)
