"""Time of each layer in a runtime on this machine, in float and in int8, and of a border between them.

The runtime's own profile tells the time of each kernel of the whole float file and of the file all in int8, which other
programs on the machine hardly change; a kernel belongs to the layer whose product it computes. Both files, run in
turns, say by how much a call takes longer than its kernels. What stands at a border (rounding, and another order of
memory) costs so much for each value of a tensor, as the largest such kernel of both files tells. What the int8 file
takes besides its products, rounding around operations that stay in float, is shared out among them by their outputs.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions import DENSE_BITS
from senseapp.networks.network import Network
from senseapp.networks.onnx.graph import OnnxGraph, read_by
from senseapp.records.deployment import FLOAT, INT8, INT8_BITS, Conversion, LayerTime, LayerTimes, OperatorTime
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.call_times import Kernel, quick_seconds, times
from senseapp.runtimes.onnxruntime.file_writer import ROUNDING
from senseapp.runtimes.onnxruntime.int8 import int8_nodes
from senseapp.runtimes.onnxruntime.qdq import QUANTIZED
from senseapp.runtimes.onnxruntime.rounding.ranges import tensors_of
from senseapp.runtimes.quantizers import Quantizer

_BORDERS = (*ROUNDING, "ReorderInput", "ReorderOutput")  # where float and int8 meet, or two orders of memory
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_INT8_KIND = re.compile(r"^(?:QLinear|DynamicQuantize|Fused|Q(?=Gemm|Attention))|Integer(?:ToFloat)?$")
_FUSED_BEHIND = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Add", "Mul"})
"""Operators that runtimes compute with the product before them."""
_APPROXIMATE = (
    "Times of single layers are approximate: the runtime's profile, scaled to the time of the whole file. The file of "
    "a schedule is timed itself before it is offered."
)
_OWN = re.compile(r"product(\d+)(?:[_.]|$)")

Shape = tuple[int, ...]


class OnnxTimes(Runtime):
    """Times by the profiles of a runtime of ONNX files."""

    @abstractmethod
    def kernels(self, content: bytes, *, threads: int, batch: int) -> list[Kernel]:
        """Return the kernels of a file that runs on some images."""

    @abstractmethod
    def opened(self, content: bytes, *, threads: int | None = None) -> Network:
        """Return a file that takes what it declares."""

    @abstractmethod
    def float_graph(self, content: bytes) -> bytes:
        """Return the graph of a float file whose layers are timed."""

    def time_layers(
        self, content: bytes, quantizer: Quantizer, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> LayerTimes:
        """Return the times of layers by the runtime's own profile; see :meth:`.Runtime.time_layers`."""
        network, int8 = quantizer.network, quantizer.write()
        graph, shapes = OnnxGraph(network), shapes_of(network, batch)
        products = _products(graph, owners, shapes)
        names = [name for name, _ in products.values()]
        kernels = [self.kernels(_numbered(each, names), threads=threads, batch=batch) for each in (network, int8)]
        walls = wall_seconds([self.opened(file, threads=threads) for file in (network, int8)], shapes[graph.inputs[0]])
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
        largest = _largest([kernel for each in kernels for kernel in each])
        edges = crossings(graph, owners, set(int8_nodes(int8)), shapes)
        return LayerTimes(
            times=tuple(found),
            other_seconds=real_rest,
            conversions=tuple(
                Conversion(
                    first=one, second=other, seconds=float(slower.mean()) * count * _border_seconds(largest, dims)
                )
                for (one, other), (count, dims) in edges.items()
            ),
            source=f"measured on {self.machine()}",
            notes=(_APPROXIMATE,),
        )

    def time_products(
        self, content: bytes, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> tuple[dict[str, tuple[float, int]], float]:
        """Return the seconds of each layer's kernels by the runtime's own profile."""
        network = self.float_graph(content)
        products = _products(OnnxGraph(network), owners, shapes_of(network, batch))
        numbered = _numbered(network, [name for name, _ in products.values()])
        seconds, rest = _scaled(self.kernels(numbered, threads=threads, batch=batch), len(products), 1.0)
        sizes = (math.prod(shape) for _, shape in products.values())
        return dict(zip(products, zip(seconds.tolist(), sizes, strict=True), strict=True)), rest

    def operators(self, content: bytes, *, threads: int = 1, batch: int = 1) -> tuple[OperatorTime, ...]:
        """Return the seconds of all kernels by kind, called as in float: a ``QLinearConv`` is a ``Conv``."""
        calls: Counter[str] = Counter()
        seconds: defaultdict[str, float] = defaultdict(float)
        for kernel in self.kernels(content, threads=threads, batch=batch):
            kind = _INT8_KIND.sub("", kernel.kind)
            calls[kind] += 1
            seconds[kind] += kernel.seconds
        return tuple(
            OperatorTime(kind=kind, calls=calls[kind], seconds=spent, is_border=kind in _BORDERS)
            for kind, spent in seconds.items()
        )


def _numbered(content: bytes, names: Sequence[str]) -> bytes:
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


def _scaled(kernels: Sequence[Kernel], count: int, rate: float) -> tuple[NDArray[np.float64], float]:
    """Return the seconds of the kernels of each of ``count`` products, and of all others, times ``rate``."""
    seconds = np.zeros(count)
    for kernel in kernels:
        if own := _OWN.match(kernel.name):
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


def _products(graph: OnnxGraph, owners: Mapping[str, str], shapes: Mapping[str, Shape]) -> dict[str, tuple[str, Shape]]:
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


def _largest(kernels: Sequence[Kernel]) -> dict[str, Kernel]:
    """Return the kernel of each kind that reads the largest tensor, which tells best what a value takes."""
    return {each.kind: each for each in sorted(kernels, key=lambda each: each.values) if each.values}


def _border_seconds(largest: Mapping[str, Kernel], dims: int) -> float:
    """Return what a value of a tensor costs on its way from float to int8 or back, the mean of both ways.

    It is rounded one way and made float the other, which take about as long; maps get another order of memory, too.
    """

    def rate(*kinds: str) -> float:
        found = max((largest[kind] for kind in kinds if kind in largest), key=lambda each: each.values, default=None)
        return 0.0 if found is None else found.seconds / found.values

    reordered = (rate("ReorderInput") + rate("ReorderOutput")) / 2 + rate("Transpose") if dims == 4 else 0.0
    return rate(*ROUNDING) + reordered


def crossings(
    graph: OnnxGraph, owners: Mapping[str, str], ends: set[str], shapes: Mapping[str, Shape]
) -> dict[tuple[str, str], tuple[int, int]]:
    """Return pairs of neighbours that may differ, each with the values and dimensions of the tensor between them.

    ``ends`` are the nodes that can compute in int8; what lies between two of them passes values on as they are. What
    the runtime always computes in float parts them: what that costs is in the times of layers.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    carried: dict[str, str] = {graph.inputs[0]: FLOAT}
    for node in graph.nodes:
        sources = [name for name in node.input if name in carried]
        if node.op_type not in QUANTIZED:
            continue
        if node.name in ends or node.name in owners:
            own = owners.get(node.name, INT8)
            for name in sources:
                _add(found, carried[name], own, shapes[name])
            carried |= dict.fromkeys(node.output, own)
        elif sources:
            carried |= dict.fromkeys(node.output, carried[sources[0]])
    for name in graph.outputs:
        if name in carried:
            _add(found, carried[name], FLOAT, shapes[name])
    return found


def _add(found: dict[tuple[str, str], tuple[int, int]], first: str, second: str, shape: Shape) -> None:
    if first != second and {first, second} != {FLOAT, INT8}:
        count = found.get((first, second), (0, 0))[0]
        found[first, second] = count + math.prod(shape), len(shape)
