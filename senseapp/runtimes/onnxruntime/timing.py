"""Time of each layer in a runtime on this machine, in float and in int8, and of a border between them.

The runtime's own profile tells the time of each kernel of the whole float file and of the file all in int8, which other
programs on the machine hardly change; a kernel belongs to the layer whose product it computes. Both files, run in
turns, say by how much a call takes longer than its kernels. What stands at a border (rounding, and another order of
memory) costs so much for each value of a tensor, as such kernels of both files tell. What the int8 file takes besides
its products, rounding around operations that stay in float, is shared out among them by their outputs.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions import DENSE_BITS
from senseapp.networks.network import Network
from senseapp.networks.onnx.graph import OnnxGraph, read_by
from senseapp.records.deployment import FLOAT, INT8, INT8_BITS, Conversion, LayerTime, LayerTimes, OperatorTime
from senseapp.runtimes.call_times import Kernel, quick_seconds, times
from senseapp.runtimes.onnxruntime.int8 import int8_nodes
from senseapp.runtimes.onnxruntime.rounding.qdq import QUANTIZED, ROUNDING
from senseapp.runtimes.onnxruntime.rounding.ranges import tensors_of

_REORDERS = ("ReorderInput", "ReorderOutput")  # where two orders of memory meet
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_INT8_KIND = re.compile(r"^(?:QLinear|DynamicQuantize|Fused|Q(?=Gemm|Attention))|Integer(?:ToFloat)?$")
_FUSED_BEHIND = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Add", "Mul"})
"""Operators that runtimes compute with the product before them."""
_APPROXIMATE = (
    "Times of single layers are approximate: the runtime's profile, scaled to the time of the whole file. The file of "
    "a schedule is timed itself before it is offered."
)
PRODUCT_NUMBER = re.compile(r"product(\d+)(?:[_.]|$)")
"""Of a name by :func:`numbered`."""

Shape = tuple[int, ...]


def layer_times(
    files: Sequence[bytes],
    kernels: Sequence[Sequence[Kernel]],
    opened: Sequence[Network],
    owners: Mapping[str, str],
    shapes: Mapping[str, Shape],
    *,
    source: str,
) -> LayerTimes:
    """Return the times of layers in float and in int8, and of borders between them; see :meth:`.Runtime.time_layers`.

    Args:
        files: in float and all in int8.
        kernels: of both, :func:`numbered`.
        opened: both.
        owners: the layer of a node.
        shapes: see :func:`shapes_of`.
        source: where they were measured.
    """
    graph = OnnxGraph(files[0])
    products = products_of(graph, owners, shapes)
    walls = wall_seconds(opened, shapes[graph.inputs[0]])
    slower = walls / np.array([sum(kernel.seconds for kernel in each) for each in kernels])
    (real, real_rest), (whole, whole_rest) = (
        by_product(each, len(products), rate) for each, rate in zip(kernels, slower, strict=True)
    )
    sizes = np.array([math.prod(shape) for _, shape in products.values()])
    whole += (whole_rest - real_rest) * sizes / sizes.sum()  # with what the int8 file rounds between products
    found = [
        LayerTime(layer=layer, level=level, seconds=float(max(seconds, 0.0)))
        for level, spent in ((DENSE_BITS, real), (float(INT8_BITS), whole))
        for layer, seconds in zip(products, spent, strict=True)
    ]
    # of a value on its way from float to int8 or back: it is rounded, and maps get another order of memory
    costs = [float(slower.mean()) * _seconds_of_a_value(kernels, each) for each in (ROUNDING, _REORDERS, ["Transpose"])]
    borders = defaultdict[tuple[str, str], float](float)
    for first, second, shape in _crossings(graph, owners, set(int8_nodes(files[1])), shapes):
        if first != second and {first, second} != {FLOAT, INT8}:
            borders[first, second] += math.prod(shape) * sum(costs if len(shape) == 4 else costs[:1])
    return LayerTimes(
        times=tuple(found),
        other_seconds=real_rest,
        conversions=tuple(
            Conversion(first=one, second=other, seconds=spent) for (one, other), spent in borders.items()
        ),
        source=source,
        notes=(_APPROXIMATE,),
    )


def by_operator(kernels: Sequence[Kernel]) -> tuple[OperatorTime, ...]:
    """Return the seconds of all kernels by kind, called as in float: a ``QLinearConv`` is a ``Conv``."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        seconds[_INT8_KIND.sub("", kernel.kind)].append(kernel.seconds)
    return tuple(
        OperatorTime(kind=kind, calls=len(each), seconds=sum(each), is_border=kind in (*ROUNDING, *_REORDERS))
        for kind, each in seconds.items()
    )


def numbered(content: bytes, names: Sequence[str]) -> bytes:
    """Return a file in which the nodes called ``names`` have names by which their kernels are known.

    A kernel that computes a product with the operations behind it may be called as the tensor that it returns, so
    these tensors have such names, too.
    """
    graph, places = OnnxGraph(content), {name: place for place, name in enumerate(names)}
    inside = {name for node in graph.nodes for name in read_by(node) if name not in node.input}
    owners, renamed = dict[str, int](), dict[str, str]()
    for node in graph.nodes:
        own = places.get(node.name)
        if own is None and node.op_type in _FUSED_BEHIND:
            own = next((owners[name] for name in reversed(node.input) if name in owners), None)
        elif own is not None:
            node.name = f"product{own}"
        if own is None:
            continue
        for name in node.output:
            owners[name] = own
            if name not in inside:
                renamed[name] = f"product{own}.{len(renamed)}"
    for node in graph.nodes:
        for side in (node.input, node.output):
            side[:] = [renamed.get(name, name) for name in side]
    for value in (*graph.model.graph.output, *graph.model.graph.value_info):
        value.name = renamed.get(value.name, value.name)
    return graph.content()


def by_product(kernels: Sequence[Kernel], count: int, rate: float = 1.0) -> tuple[NDArray[np.float64], float]:
    """Return the seconds of the kernels of each of ``count`` products, and of all others, times ``rate``."""
    seconds = np.zeros(count)
    for kernel in kernels:
        if own := PRODUCT_NUMBER.match(kernel.name):
            seconds[int(own[1])] += rate * kernel.seconds
    return seconds, rate * sum(kernel.seconds for kernel in kernels) - float(seconds.sum())


def shapes_of(network: bytes, batch: int) -> dict[str, Shape]:
    """Return the shape of every tensor that nodes compute in a call on ``batch`` images, and of these."""
    graph = OnnxGraph(network)
    dims = graph.model.graph.input[0].type.tensor_type.shape.dim
    images = (dims[0].dim_value or batch, *(dim.dim_value for dim in dims[1:]))
    made = [name for node in graph.nodes for name in node.output if name]
    values = next(iter(tensors_of(network, [torch.zeros(images)], made)))
    return {graph.inputs[0]: images} | {name: tuple(value.shape) for name, value in values.items()}


def products_of(
    graph: OnnxGraph, owners: Mapping[str, str], shapes: Mapping[str, Shape]
) -> dict[str, tuple[str, Shape]]:
    """Return layers that are products with weights, each with the name of its node and the shape of its output."""
    found = dict[str, tuple[str, Shape]]()
    for node in graph.nodes:
        layer = owners.get(node.name)
        if node.op_type in _PRODUCTS and layer is not None and node.input[1] in graph.initializers:
            found.setdefault(layer, (node.name, shapes[node.output[0]]))
    if not found:
        raise InvalidSpec("No layer of this network is one whose time can be taken.")
    return found


def wall_seconds(opened: Sequence[Network], shape: Shape) -> NDArray[np.float64]:
    """Return the seconds of a quick call of each network, run in turns on images of ``shape``.

    On a busy machine most calls of some milliseconds are interrupted, and a longer one oftener, while a profile tells
    what kernels take undisturbed: medians would make the slower network take longer than its kernels than the other.
    """
    # calls of each file, of which a quick one counts, see quick_seconds
    return np.array([quick_seconds(each) for each in times(opened, torch.zeros(shape), turns=15)])


def _seconds_of_a_value(kernels: Sequence[Sequence[Kernel]], kinds: Collection[str]) -> float:
    found = [each for each in chain(*kernels) if each.kind in kinds]
    return sum(each.seconds for each in found) / max(1, sum(each.values for each in found))


def _crossings(
    graph: OnnxGraph, owners: Mapping[str, str], ends: set[str], shapes: Mapping[str, Shape]
) -> Iterator[tuple[str, str, Shape]]:
    """Yield pairs of neighbours, each with the shape of a tensor between them.

    ``ends`` are the nodes that can compute in int8; what lies between two of them passes values on as they are. What
    the runtime always computes in float parts them: what that costs is in the times of layers.
    """
    carried: dict[str, str] = {graph.inputs[0]: FLOAT}
    for node in graph.nodes:
        sources = [name for name in node.input if name in carried]
        if node.op_type not in QUANTIZED:
            continue
        if node.name in ends or node.name in owners:
            own = owners.get(node.name, INT8)
            yield from ((carried[name], own, shapes[name]) for name in sources)
            carried |= dict.fromkeys(node.output, own)
        elif sources:
            carried |= dict.fromkeys(node.output, carried[sources[0]])
    yield from ((carried[name], FLOAT, shapes[name]) for name in graph.outputs if name in carried)
