"""How long each layer takes in a runtime of ONNX files here, in float and in int8, and what a change between costs.

Every layer is put, with its shapes, into one file of layers that do not depend on each other, once in float and once in
int8; the runtime's own profile tells the time of each kernel, which other programs on the machine hardly change. What
stands at the border of an int8 part (rounding, and another order of memory) costs so much for each value of a tensor.
The whole network's float and int8 files, run in turns, say by how much layers take longer inside it; what the int8 file
takes besides its products, rounding around operations that stay in float, is shared out among them by their outputs.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from senseapp.core.errors import InvalidSpec
from senseapp.records.deployment import FLOAT, INT8, INT8_BITS, Conversion, LayerTime, LayerTimes
from senseapp.runtimes.base import RuntimeNetwork, times
from senseapp.runtimes.onnxruntime.int8 import int8_nodes
from senseapp.runtimes.onnxruntime.partly_int8 import QUANTIZED

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_BORDER = ("QuantizeLinear", "DequantizeLinear", "Transpose", "ReorderInput", "ReorderOutput")
_FLOAT_BITS = 32.0
RUNS = 21
"""How often a file runs for the times of its kernels."""
_OPSET = 21
_OWN = re.compile(r"product(\d+)(?:_|$)")
_TURNS = 15


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a profile.

    Attributes:
        name: of the node that it computes, or begins with it.
        kind: of the node.
        seconds: median over :data:`RUNS` runs.
        values: of its first input.
    """

    name: str
    kind: str
    seconds: float
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiler:
    """How one runtime takes times.

    Attributes:
        kernels: returns the kernels of a file that runs on some images; takes the file, threads and images of a call.
        open: opens a file on so many threads.
        machine: returns processor and runtime, for people.
    """

    kernels: Callable[[bytes, int, int], list[Kernel]]
    open: Callable[[bytes, int], RuntimeNetwork]
    machine: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """The node of a layer, its weight, and the shapes of what goes in and comes out."""

    node: onnx.NodeProto
    weight: onnx.TensorProto
    given: tuple[int, ...]
    made: tuple[int, ...]


def time_layers(
    network: bytes, int8: bytes, owners: Mapping[str, str], *, profiler: Profiler, threads: int = 1, batch: int = 1
) -> LayerTimes:
    """Return the times of layers of a float ``network``, whose file in ``int8`` has all of them in int8.

    ``owners`` has the layer that a node belongs to, for the nodes of layers.

    Raises:
        InvalidSpec: none of them is a product that is computed in int8.
    """
    graph = onnx.load_from_string(network).graph
    shapes = _shapes(graph, batch)
    products = dict(_products(graph, owners, shapes))
    if not products:
        raise InvalidSpec("No layer of this network is one whose time in int8 can be taken.")
    every = list(products.values())
    real, rates = _timed(_bench(every, int8=False), len(every), profiler, threads)
    whole, int8_rates = _timed(_bench(every, int8=True), len(every), profiler, threads)
    rates |= int8_rates
    files = (network, int8)
    (real_own, real_rest), (whole_own, whole_rest) = (_split(profiler.kernels(file, threads, batch)) for file in files)
    walls = _wall([profiler.open(file, threads) for file in files], shapes[graph.input[0].name])
    slower = walls / np.array([real_own + real_rest, whole_own + whole_rest])  # than the sum of their kernels
    real_seconds = slower[0] * real_own * np.array(real) / sum(real)
    whole_seconds = slower[1] * whole_own * np.array(whole) / sum(whole)
    sizes = np.array([math.prod(each.made) for each in every])
    whole_seconds += (slower[1] * whole_rest - slower[0] * real_rest) * sizes / sizes.sum()  # with what it is between
    found = [
        LayerTime(layer=layer, level=level, seconds=float(max(seconds, 0.0)))
        for level, spent in ((_FLOAT_BITS, real_seconds), (float(INT8_BITS), whole_seconds))
        for layer, seconds in zip(products, spent, strict=True)
    ]
    edges = _edges(graph, owners, set(int8_nodes(int8)), shapes)
    return LayerTimes(
        times=tuple(found),
        other_seconds=float(slower[0] * real_rest),
        conversions=tuple(
            Conversion(first=first, second=second, seconds=float(slower.mean()) * count * _border(rates, dims))
            for (first, second), (count, dims) in edges.items()
        ),
        source=f"measured on {profiler.machine()}",
        measured_here=True,
    )  # fmt: skip


def time_products(
    network: bytes, owners: Mapping[str, str], *, profiler: Profiler, threads: int = 1, batch: int = 1
) -> tuple[dict[str, tuple[float, int]], float]:
    """Return the seconds of each layer's kernels in a float ``network`` with the values that it makes; and of the rest.

    Raises:
        InvalidSpec: none of ``owners``, layers by node, is a product.
    """
    model = onnx.load_from_string(network)
    products = dict(_products(model.graph, owners, _shapes(model.graph, batch)))
    if not products:
        raise InvalidSpec("No layer of this network is one whose time can be taken.")
    names = {product.node.name: f"product{index}" for index, product in enumerate(products.values())}
    for node in model.graph.node:
        node.name = names.get(node.name, node.name)
    kernels = profiler.kernels(model.SerializeToString(), threads, batch)
    seconds = _by_product(kernels, len(products))
    sizes = (math.prod(product.made) for product in products.values())
    rest = sum(kernel.seconds for kernel in kernels) - sum(seconds)
    return dict(zip(products, zip(seconds, sizes, strict=True), strict=True)), rest


def _border(rates: Mapping[str, float], dims: int) -> float:
    """Return what one value of a tensor costs on its way from float to int8 or back, the mean of both ways."""
    kinds = _BORDER if dims == 4 else _BORDER[:2]
    both = sum(rates.get(kind, 0.0) * (2 if kind == "Transpose" else 1) for kind in kinds)
    return both / 2


def _shapes(graph: onnx.GraphProto, batch: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor; a size that is no number is that of the batch."""
    described = (*graph.input, *graph.value_info, *graph.output)
    return {
        each.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else batch for dim in each.type.tensor_type.shape.dim
        )
        for each in described
    }


def _products(
    graph: onnx.GraphProto, owners: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, _Product]]:
    weights = {each.name: each for each in graph.initializer}
    seen: set[str] = set()
    for node in graph.node:
        layer = owners.get(node.name)
        if node.op_type not in _PRODUCTS or layer is None or layer in seen or node.input[1] not in weights:
            continue
        if node.input[0] in shapes and node.output[0] in shapes:
            seen.add(layer)
            weight = weights[node.input[1]]
            yield layer, _Product(node=node, weight=weight, given=shapes[node.input[0]], made=shapes[node.output[0]])


def _bench(products: Sequence[_Product], *, int8: bool) -> bytes:
    """Return a file in which each product stands for itself, between tensors of its own."""
    nodes, inputs, outputs, constants = [], [], [], []
    generator = np.random.default_rng(0)
    kind = TensorProto.UINT8 if int8 else TensorProto.FLOAT
    for name, value in (("scale", np.float32(0.02)), ("zero", np.uint8(128)), ("bias_scale", np.float32(0.0004))):
        constants.append(numpy_helper.from_array(np.array(value), name))
    for index, product in enumerate(products):
        name = f"product{index}"
        dims = tuple(product.weight.dims)
        biased = len(product.node.input) > 2
        inputs.append(helper.make_tensor_value_info(f"in{index}", kind, product.given))
        outputs.append(helper.make_tensor_value_info(f"out{index}" if int8 else name, kind, product.made))
        own = onnx.NodeProto()
        own.CopyFrom(product.node)
        own.name, own.output[0] = name, name
        del own.metadata_props[:]
        if not int8:
            constants.append(numpy_helper.from_array(generator.uniform(-1, 1, dims).astype(np.float32), f"w{index}"))
            own.input[0], own.input[1] = f"in{index}", f"w{index}"
            if biased:
                own.input[2] = f"b{index}"
                constants.append(numpy_helper.from_array(np.zeros(_outputs(product), np.float32), f"b{index}"))
            nodes.append(own)
            continue
        constants.append(numpy_helper.from_array(generator.integers(-60, 60, dims, dtype=np.int8), f"w{index}"))
        nodes.append(helper.make_node("DequantizeLinear", [f"in{index}", "scale", "zero"], [f"x{index}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"w{index}", "scale"], [f"v{index}"]))
        own.input[0], own.input[1] = f"x{index}", f"v{index}"
        if biased:
            constants.append(numpy_helper.from_array(np.zeros(_outputs(product), np.int32), f"b{index}"))
            nodes.append(helper.make_node("DequantizeLinear", [f"b{index}", "bias_scale"], [f"c{index}"]))
            own.input[2] = f"c{index}"
        nodes += [own, helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"out{index}"])]
    if int8:  # what the borders of an int8 part cost, on the largest tensor
        grid = ("scale", "zero")
        largest = max(products, key=lambda each: math.prod(each.made))
        inputs.append(helper.make_tensor_value_info("border", TensorProto.FLOAT, largest.made))
        outputs.append(helper.make_tensor_value_info("rounded_QuantizeLinear", TensorProto.UINT8, largest.made))
        inputs.append(helper.make_tensor_value_info("back", TensorProto.UINT8, largest.made))
        outputs.append(helper.make_tensor_value_info("real_DequantizeLinear", TensorProto.FLOAT, largest.made))
        nodes.append(helper.make_node("QuantizeLinear", ["border", *grid], ["rounded_QuantizeLinear"]))
        nodes.append(helper.make_node("DequantizeLinear", ["back", *grid], ["real_DequantizeLinear"]))
    graph = helper.make_graph(nodes, "layers", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", _OPSET)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def _outputs(product: _Product) -> int:
    return product.made[1] if product.node.op_type == "Conv" else product.made[-1]


def _timed(content: bytes, count: int, profiler: Profiler, threads: int) -> tuple[list[float], dict[str, float]]:
    """Return the seconds of each product of a bench, and those of a value by kind of border kernel."""
    spent: defaultdict[str, float] = defaultdict(float)
    values: defaultdict[str, int] = defaultdict(int)
    kernels = profiler.kernels(content, threads, 1)
    for kernel in kernels:
        if kernel.kind in _BORDER:
            spent[kernel.kind] += kernel.seconds
            values[kernel.kind] += kernel.values
    products = _by_product([kernel for kernel in kernels if kernel.kind not in _BORDER], count)
    return products, {kind: spent[kind] / max(1, values[kind]) for kind in spent}


def _by_product(kernels: Sequence[Kernel], count: int) -> list[float]:
    """Return the seconds of the kernels of each product."""
    seconds = [0.0] * count
    for kernel in kernels:
        if own := _OWN.match(kernel.name):
            seconds[int(own[1])] += kernel.seconds
    return seconds


def _split(kernels: Sequence[Kernel]) -> tuple[float, float]:
    """Return the seconds of products, and of everything else."""
    products = sum(each.seconds for each in kernels if re.search("Conv|Gemm|MatMul", each.kind))
    return products, sum(each.seconds for each in kernels) - products


def _wall(opened: Sequence[RuntimeNetwork], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.array([statistics.median(each) for each in times(opened, torch.zeros(shape), turns=_TURNS)])


def _edges(
    graph: onnx.GraphProto, owners: Mapping[str, str], ends: set[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[tuple[str, str], tuple[int, int]]:
    """Return pairs of neighbours that may differ, each with the values and dimensions of the tensor between them.

    ``ends`` are the nodes that can compute in int8; what lies between two of them passes values on as they are. What
    the runtime always computes in float parts them: what that costs is in the times of layers.
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
