"""Times of the kernels of a file from a runtime's own profile."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from senseapp.runtimes.foreign import RuntimeNetwork

BORDER = ("QuantizeLinear", "DequantizeLinear", "Transpose", "ReorderInput", "ReorderOutput")
"""What stands where float and int8 meet, or two orders of memory."""
RUNS = 21
"""How often a file runs for the times of its kernels."""
PRODUCT = "product"
"""Before the number of a product in the name of its node."""
_OWN = re.compile(rf"{PRODUCT}(\d+)(?:[_.]|$)")


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


_NO_KERNEL = Kernel("", "", 0.0, 0)


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


def usual_input(shape: Sequence[int], kind: np.dtype[Any] | type) -> NDArray[Any]:
    """Return an input to take times with: standard normal numbers, or whole ones from 0 to 254 of a type of integers.

    Shares of a softmax over larger numbers fall below 1e-38, where some processors take ten times as long.
    """
    generator = np.random.default_rng(0)
    if np.issubdtype(kind, np.integer):
        return generator.integers(0, 255, shape).astype(kind)
    return generator.standard_normal(shape).astype(kind)


def border_rates(kernels: Sequence[Kernel]) -> dict[str, float]:
    """Return the seconds of a value by kind of border kernel, of the largest tensor that one has."""
    largest: dict[str, Kernel] = {}
    for kernel in kernels:
        if kernel.kind in BORDER and kernel.values > largest.get(kernel.kind, _NO_KERNEL).values:
            largest[kernel.kind] = kernel
    return {kind: kernel.seconds / kernel.values for kind, kernel in largest.items()}


def border_bench(shape: Sequence[int]) -> bytes:
    """Return a file that rounds one tensor of ``shape``, and makes another of integers float."""
    real, integers = TensorProto.FLOAT, TensorProto.UINT8
    inputs, outputs = (
        {"x": real, "codes": integers},
        {"rounded_QuantizeLinear": integers, "real_DequantizeLinear": real},
    )
    fed, returned = (
        [helper.make_tensor_value_info(name, kind, shape) for name, kind in each.items()] for each in (inputs, outputs)
    )
    constants = [
        numpy_helper.from_array(np.array(0.02, np.float32), "scale"),
        numpy_helper.from_array(np.array(128, np.uint8), "zero"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["rounded_QuantizeLinear"]),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["real_DequantizeLinear"]),
    ]
    graph = helper.make_graph(nodes, "border", fed, returned, constants)
    opsets = [helper.make_opsetid("", 21)]  # onnxruntime has read it since 1.18
    version = helper.find_min_ir_version_for(opsets)
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=version).SerializeToString())


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
