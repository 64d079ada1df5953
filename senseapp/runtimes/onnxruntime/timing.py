"""Time of each layer in a runtime on this machine, in float and in int8, and of a border; nodes that it executes.

The runtime's profile has the time of each kernel of the float file and of the file all in int8; a kernel belongs to the
layer whose product it computes. Both files, run in turns, say by how much a call takes longer than its kernels. A
border (rounding, and another order of memory) costs as much per value as such kernels of both files. What the int8 file
takes besides its products is shared out among them by their outputs.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto

from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import grouped
from senseapp.descriptions import DENSE_BITS
from senseapp.networks.onnx.graph import OnnxGraph, attributes_of, read_by, unique_names
from senseapp.records.deployment import FLOAT, INT8, INT8_BITS, Conversion, LayerTime, LayerTimes, OperatorTime
from senseapp.records.executed import ExecutedNode
from senseapp.runtimes.call_times import Kernel, quick_seconds, times
from senseapp.runtimes.onnxruntime.int8 import int8_nodes
from senseapp.runtimes.onnxruntime.rounding.qdq import QUANTIZED, ROUNDING, WEIGHTED
from senseapp.runtimes.onnxruntime.rounding.ranges import tensors_of
from senseapp.runtimes.open_file import OpenFile

_REORDERS = ("ReorderInput", "ReorderOutput")  # where two orders of memory meet
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_INT8_KIND = re.compile(r"^(?:QLinear|DynamicQuantize|Fused|Q(?=Gemm|Attention))|Integer(?:ToFloat)?$")
_FUSED_BEHIND = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Add", "Mul"})
"""Operators that runtimes compute with the product before them."""
_APPROXIMATE = (
    "Times of single layers are approximate: the runtime's profile, scaled to the time of the whole file. The file of "
    "a schedule is timed itself before it is offered."
)
_PRODUCT_NUMBER = re.compile(r"product(\d+)(?:[_.]|$)")
"""Of a name by :func:`numbered`."""
_MULTIPLIES = re.compile(r"conv|gemm|matmul|attention", re.IGNORECASE)
_CONVERSIONS = frozenset({*ROUNDING, *_REORDERS, "Cast", "Convert", "Reorder", "Input", "Output", "Const"})
_NO_PRODUCT = -1

Shape = tuple[int, ...]


class LayerProducts:
    """The layers of a float network that are products with weights, their nodes, and how many values each computes.

    Raises InvalidSpec if there is none.
    """

    def __init__(self, network: bytes, owners: Mapping[str, str], batch: int) -> None:
        self.graph, self.owners, self.shapes = OnnxGraph(network), owners, shapes_of(network, batch)
        found = dict[str, NodeProto]()
        for node in self.graph.nodes:
            layer = owners.get(node.name)
            if node.op_type in _PRODUCTS and layer is not None and node.input[1] in self.graph.initializers:
                found.setdefault(layer, node)
        if not found:
            raise InvalidSpec("No layer of this network is one whose time can be taken.")
        self.layers, self.nodes = list(found), [node.name for node in found.values()]
        self.sizes = np.array([math.prod(self.shapes[node.output[0]]) for node in found.values()])

    def seconds(self, kernels: Sequence[Kernel], rate: float) -> tuple[NDArray[np.float64], float]:
        """Return the seconds of the kernels of each product, and of all others, times ``rate``."""
        seconds = np.zeros(len(self.nodes))
        for kernel in kernels:
            if own := _PRODUCT_NUMBER.match(kernel.name):
                seconds[int(own[1])] += rate * kernel.seconds
        return seconds, rate * sum(kernel.seconds for kernel in kernels) - float(seconds.sum())


def layer_times(
    products: LayerProducts,
    files: Sequence[bytes],
    kernels: Sequence[Sequence[Kernel]],
    opened: Sequence[OpenFile],
    *,
    source: str,
) -> LayerTimes:
    """Return the times of layers in ``files``, in float and perhaps in int8; see :meth:`.Runtime.time_layers`.

    ``kernels`` are of each file with :func:`numbered` nodes; ``opened`` are the files, measured as ``source`` says.
    """
    # Quick calls: on a busy machine most are interrupted, longer ones oftener, while a profile tells what kernels take
    # undisturbed.
    count = products.shapes[products.graph.inputs[0]][0]
    images = torch.zeros(count, *(size or 1 for size in opened[0].facts.image_shape))
    walls = np.array([quick_seconds(each) for each in times(opened, images, turns=15)])
    slower = walls / np.array([sum(kernel.seconds for kernel in each) for each in kernels])
    (real, rest), *int8 = (products.seconds(each, rate) for each, rate in zip(kernels, slower, strict=True))
    spent = {DENSE_BITS: real}
    for whole, more in int8:  # with what the file rounds between products
        spent[float(INT8_BITS)] = whole + (more - rest) * products.sizes / products.sizes.sum()
    # of a value on its way from float to int8 or back: it is rounded, and maps get another order of memory
    costs = [float(slower.mean()) * _seconds_of_a_value(kernels, each) for each in (ROUNDING, _REORDERS, ["Transpose"])]
    borders = defaultdict[tuple[str, str], float](float)
    for first, second, shape in _crossings(products, set(int8_nodes(files[-1]))) if int8 else ():
        if first != second and {first, second} != {FLOAT, INT8}:
            borders[first, second] += math.prod(shape) * sum(costs if len(shape) == 4 else costs[:1])
    return LayerTimes(
        times=tuple(
            LayerTime(layer=layer, level=level, seconds=float(max(seconds, 0.0)))
            for level, each in spent.items()
            for layer, seconds in zip(products.layers, each, strict=True)
        ),
        other_seconds=rest,
        conversions=tuple(Conversion(first=one, second=two, seconds=each) for (one, two), each in borders.items()),
        source=source,
        notes=(_APPROXIMATE,),
    )


def by_operator(kernels: Sequence[Kernel]) -> tuple[OperatorTime, ...]:
    """Return the seconds of all kernels by kind, called as in float: a ``QLinearConv`` is a ``Conv``."""
    seconds = grouped((_INT8_KIND.sub("", kernel.kind), kernel.seconds) for kernel in kernels)
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


def shapes_of(network: bytes, batch: int) -> dict[str, Shape]:
    """Return the shapes of all tensors that nodes compute in a call on ``batch`` images, and of these."""
    graph = OnnxGraph(network)
    taken = next(each for each in graph.model.graph.input if each.name == graph.inputs[0])
    dims = taken.type.tensor_type.shape.dim
    images = (dims[0].dim_value or batch, *(dim.dim_value for dim in dims[1:]))
    made = [name for node in graph.nodes for name in node.output if name]
    values = next(iter(tensors_of(network, [torch.zeros(images)], made)))
    return {graph.inputs[0]: images} | {name: tuple(value.shape) for name, value in values.items()}


def _seconds_of_a_value(kernels: Sequence[Sequence[Kernel]], kinds: Collection[str]) -> float:
    found = [each for each in chain(*kernels) if each.kind in kinds]
    return sum(each.seconds for each in found) / max(1, sum(each.values for each in found))


def _crossings(products: LayerProducts, ends: set[str]) -> Iterator[tuple[str, str, Shape]]:
    """Yield neighbours among ``ends``, nodes that can be int8, with the shape between them."""
    graph, owners, shapes = products.graph, products.owners, products.shapes
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


def executed_nodes(content: bytes, kernels: Callable[[bytes], Sequence[Kernel]]) -> tuple[ExecutedNode, ...]:
    """Return the nodes that a runtime executes in a call on one image, without those that only convert numbers.

    A product is one node, under its name in the file, whatever the runtime computes with it; ``kernels`` are those that
    a file of :func:`.numbered` products has in the runtime.
    """
    graph = OnnxGraph(content)
    for node, name in zip(graph.nodes, unique_names(graph.nodes), strict=True):
        node.name = name
    file, kinds = graph.content(), {node.name: node.op_type for node in graph.nodes}
    macs, rounded = _macs(graph), set(int8_nodes(file))
    names, found = list(macs), defaultdict[int, list[Kernel]](list)
    for kernel in kernels(numbered(file, names)):
        places = {int(own[1]) for part in (kernel.parts or (kernel.name,)) if (own := _PRODUCT_NUMBER.match(part))}
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


def _macs(graph: OnnxGraph) -> dict[str, int]:
    """Return the multiply-accumulates of each product by name, in a call on one image."""
    products = [node for node in graph.nodes if node.op_type in WEIGHTED]
    names = [(*node.input[:2], node.output[0]) for node in products]
    shapes = shapes_of(graph.content(), 1) | {name: tuple(each.dims) for name, each in graph.initializers.items()}
    found = dict[str, int]()
    for node, (read, weight, made) in zip(products, (map(shapes.__getitem__, each) for each in names), strict=True):
        if "Conv" in node.op_type:  # a transposed one turns input and output round
            found[node.name] = math.prod(made if node.op_type == "Conv" else read) * math.prod(weight[1:])
        else:
            found[node.name] = math.prod(made) * (read[0] if attributes_of(node).get("transA", 0) else read[-1])
    return found
