"""Benchmark files of single layers, and times of the kernels of a file from a runtime's own profile."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from senseapp.runtimes.base import RuntimeNetwork

BORDER = ("QuantizeLinear", "DequantizeLinear", "Transpose", "ReorderInput", "ReorderOutput")
"""What stands where float and int8 meet, or two orders of memory."""
RUNS = 21
"""How often a file runs for the times of its kernels."""
OPSET = 21  # of the files that are made for timing; onnxruntime has read it since 1.18
_OWN = re.compile(r"product(\d+)(?:_|$)")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a profile.

    Attributes:
        name: of the node that it computes, or begins with it.
        kind: of the node.
        seconds: of a call, over :data:`RUNS` runs.
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
class LayerNode:
    """The node of a layer, its weight, and the shapes of its input and output."""

    node: onnx.NodeProto
    weight: onnx.TensorProto
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]


def usual_input(shape: Sequence[int], kind: np.dtype[Any] | type) -> NDArray[Any]:
    """Return an input to take times with: standard normal numbers, or whole ones from 0 to 254 of a type of integers.

    Shares of a softmax over larger numbers fall below 1e-38, where some processors take ten times as long.
    """
    generator = np.random.default_rng(0)
    if np.issubdtype(kind, np.integer):
        return generator.integers(0, 255, shape).astype(kind)
    return generator.standard_normal(shape).astype(kind)


def product_bench(products: Sequence[LayerNode], *, int8: bool) -> bytes:
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
        inputs.append(helper.make_tensor_value_info(f"in{index}", kind, product.input_shape))
        outputs.append(helper.make_tensor_value_info(f"out{index}" if int8 else name, kind, product.output_shape))
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
        largest = max(products, key=lambda each: math.prod(each.output_shape))
        inputs.append(helper.make_tensor_value_info("border", TensorProto.FLOAT, largest.output_shape))
        outputs.append(helper.make_tensor_value_info("rounded_QuantizeLinear", TensorProto.UINT8, largest.output_shape))
        inputs.append(helper.make_tensor_value_info("back", TensorProto.UINT8, largest.output_shape))
        outputs.append(helper.make_tensor_value_info("real_DequantizeLinear", TensorProto.FLOAT, largest.output_shape))
        nodes.append(helper.make_node("QuantizeLinear", ["border", "scale", "zero"], ["rounded_QuantizeLinear"]))
        nodes.append(helper.make_node("DequantizeLinear", ["back", "scale", "zero"], ["real_DequantizeLinear"]))
    graph = helper.make_graph(nodes, "layers", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", OPSET)]
    version = helper.find_min_ir_version_for(opsets)
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=version).SerializeToString())


def _outputs(product: LayerNode) -> int:
    return product.output_shape[1] if product.node.op_type == "Conv" else product.output_shape[-1]


def timed_products(
    content: bytes, count: int, profiler: Profiler, threads: int
) -> tuple[list[float], dict[str, float]]:
    """Return the seconds of each product of a bench, and those of a value by kind of border kernel."""
    spent: defaultdict[str, float] = defaultdict(float)
    values: defaultdict[str, int] = defaultdict(int)
    kernels = profiler.kernels(content, threads, 1)
    for kernel in kernels:
        if kernel.kind in BORDER:
            spent[kernel.kind] += kernel.seconds
            values[kernel.kind] += kernel.values
    products = by_product([kernel for kernel in kernels if kernel.kind not in BORDER], count)
    return products, {kind: spent[kind] / max(1, values[kind]) for kind in spent}


def by_product(kernels: Sequence[Kernel], count: int) -> list[float]:
    """Return the seconds of the kernels of each product."""
    seconds = [0.0] * count
    for kernel in kernels:
        if own := _OWN.match(kernel.name):
            seconds[int(own[1])] += kernel.seconds
    return seconds


def border_seconds(rates: Mapping[str, float], dims: int) -> float:
    """Return what one value of a tensor costs on its way from float to int8 or back, the mean of both ways."""
    kinds = BORDER if dims == 4 else BORDER[:2]
    both = sum(rates.get(kind, 0.0) * (2 if kind == "Transpose" else 1) for kind in kinds)
    return both / 2
