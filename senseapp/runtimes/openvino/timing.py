"""Time of each layer in OpenVINO on this machine, by the graphs that it executes.

The float file and the file all in int8 are run as they are, and OpenVINO's counters give the time of each node that it
executes. A node belongs to the layer whose product it computes; others (an activation that int8 parts from its
convolution, another order of memory) belong to the layer before them. Whole calls say what the counters leave out: what
a call takes whatever it computes, and the parts of microseconds that counters cut off. What a change between float and
int8 costs is taken from files of the same network with half of its layers in int8, beside what their layers take.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from scipy.optimize import nnls

from senseapp.compat.openvino_internals import ExecutedNode
from senseapp.core.errors import InvalidSpec
from senseapp.descriptions import DENSE_BITS
from senseapp.records.deployment import INT8, INT8_BITS, Conversion, LayerTime, LayerTimes
from senseapp.runtimes.call_times import quick_seconds, ratio, times
from senseapp.runtimes.onnxruntime.bench import OPSET
from senseapp.runtimes.onnxruntime.int8 import int8_nodes
from senseapp.runtimes.onnxruntime.timing import crossings, shapes_of
from senseapp.runtimes.openvino.profile import executed_seconds
from senseapp.runtimes.openvino.runtime import OpenVinoModel, machine
from senseapp.runtimes.quantizers import Quantizer

_OPENINGS, _TURNS = 3, 15  # of each file; calls for each opening
_DIVISIONS = 2  # of the layers into two halves, each of which is in int8 in one file
_CUT_OFF = 2e-6  # seconds of a node at most: of each run the part of a microsecond, and of their mean
_COMPUTE_NOTHING = ("Input", "Output")

_Executed = Mapping[str, tuple[ExecutedNode, float]]


def time_layers(
    network: bytes, quantizer: Quantizer, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
) -> LayerTimes:
    """Return the times of layers of a float ``network``, which ``quantizer`` writes in int8.

    ``owners`` has the layer that a node belongs to, for the nodes of layers.

    Raises:
        InvalidSpec: OpenVINO executes none of them.
    """
    model, int8 = onnx.load_from_string(network), quantizer.write()
    graph, shapes = model.graph, shapes_of(model, batch)
    tensors = {name: owners[node.name] for node in graph.node if node.name in owners for name in node.output}
    own = {**tensors, **owners}
    executed = [executed_seconds(file, threads, batch) for file in (network, int8)]
    known = {layer for each in executed for layer in by_layer(each, own)[0]}
    layers = [each for each in dict.fromkeys(owners.values()) if each in known]
    if not layers:
        raise InvalidSpec("No layer of this network is one whose time can be taken.")
    halves = list(_halves(layers))
    mixed = [quantizer.write(but=[node for node, layer in owners.items() if layer not in half]) for half in halves]
    input_shape = shapes[graph.input[0].name]
    walls = _walls(network, (int8, *mixed, _nothing(input_shape)), input_shape, threads)
    nothing = walls.pop()
    call = min(nothing, min(walls) / 2)  # of networks of a few nodes both are nearly the same
    (real, real_rest), (whole, whole_rest) = (
        by_layer(as_in_a_call(each, wall - call), own) for each, wall in zip(executed, walls, strict=False)
    )
    between = (whole_rest - real_rest) / len(layers)
    in_float = {layer: real.get(layer, 0.0) for layer in layers}
    in_int8 = {layer: max(0.0, whole.get(layer, 0.0) + between) for layer in layers}
    edges = {pair: values for pair, (values, _) in crossings(graph, owners, set(int8_nodes(int8)), shapes).items()}
    missing = [
        wall - call - real_rest - sum((in_int8 if layer in half else in_float)[layer] for layer in layers)
        for half, wall in zip(halves, walls[2:], strict=True)
    ]
    costs = border_costs([_crossed(edges, half) for half in halves], missing)
    return LayerTimes(
        times=tuple(
            LayerTime(layer=layer, level=level, seconds=seconds)
            for level, spent in ((DENSE_BITS, in_float), (float(INT8_BITS), in_int8))
            for layer, seconds in spent.items()
        ),
        other_seconds=call + real_rest,
        conversions=tuple(
            Conversion(first=first, second=second, seconds=float(costs @ (1, values)))
            for (first, second), values in edges.items()
        ),
        source=f"measured on {machine()}",
    )


def as_in_a_call(executed: _Executed, seconds: float) -> dict[str, tuple[ExecutedNode, float]]:
    """Return executed nodes with times that add up to ``seconds``.

    Each gets the same of what counters may cut off; what is missing then, as where other networks' weights take the
    place of its own in the processor's caches, is in proportion.
    """
    count = sum(node.kind not in _COMPUTE_NOTHING for node, _ in executed.values())
    spent = sum(each for _, each in executed.values())
    cut = max(0.0, min(_CUT_OFF, (seconds - spent) / max(count, 1)))
    rate = (seconds - cut * count) / spent if spent else 1.0
    return {
        name: (node, rate * each + (cut if node.kind not in _COMPUTE_NOTHING else 0.0))
        for name, (node, each) in executed.items()
    }


def by_layer(nodes: _Executed, owners: Mapping[str, str]) -> tuple[dict[str, float], float]:
    """Return the seconds of executed nodes by layer, and those of nodes before any layer."""
    seconds: defaultdict[str, float] = defaultdict(float)
    owner: dict[str, str] = {}
    rest = 0.0
    for name, (node, spent) in nodes.items():
        own = next((owners[part] for part in node.parts if part in owners), None)
        before = (owner[source] for source in node.sources if source in owner)
        layer = own if own is not None else next(before, None)
        if layer is None:
            rest += spent
        else:
            owner[name] = layer
            seconds[layer] += spent
    return dict(seconds), rest


def border_costs(crossed: Sequence[Sequence[int]], seconds: Sequence[float]) -> NDArray[np.float64]:
    """Return the costs of a border between float and int8, and of each value that passes it, by least squares.

    ``crossed`` has the values of the tensors at the borders of some files, ``seconds`` what these take beside their
    layers.
    """
    found = np.array([(len(values), sum(values)) for values in crossed], np.float64).reshape(-1, 2)
    scale = found.max(axis=0, initial=1.0)
    solved, _ = nnls(found / scale, np.array(seconds, np.float64)) if len(found) else (np.zeros(2), 0.0)
    costs: NDArray[np.float64] = solved / scale
    return costs


def _crossed(edges: Mapping[tuple[str, str], int], in_int8: Collection[str]) -> list[int]:
    inside = {INT8, *in_int8}
    return [values for (first, second), values in edges.items() if (first in inside) != (second in inside)]


def _halves(layers: Sequence[str]) -> Iterator[set[str]]:
    """Yield sets of half of the layers, each once with those that it has not."""
    generator = np.random.default_rng(0)
    for _ in range(_DIVISIONS if len(layers) > 1 else 0):
        half = set(generator.permutation(layers)[: len(layers) // 2].tolist())
        yield half
        yield set(layers) - half


def _walls(network: bytes, files: Sequence[bytes], input_shape: tuple[int, ...], threads: int) -> list[float]:
    """Return the seconds of a call of ``network`` and of each file, on images of a shape, each in turns with it alone.

    More files in turns than two would take the processor's caches from each other. All are opened several times: where
    memory lies makes a difference.
    """
    images, least = torch.zeros(input_shape), math.inf
    spent: list[tuple[list[float], list[float]]] = [([], []) for _ in files]
    for _ in range(_OPENINGS):
        reference = OpenVinoModel(network, threads=threads)
        for file, (own, other) in zip(files, spent, strict=True):
            seconds, beside = times((OpenVinoModel(file, threads=threads), reference), images, turns=_TURNS)
            own += seconds
            other += beside
            least = min(least, quick_seconds(beside))
    return [least, *(least * ratio(own, other).value for own, other in spent)]


def _nothing(input_shape: tuple[int, ...]) -> bytes:
    """Return a network that takes images of a shape, and computes next to nothing."""
    output_shape = (*input_shape[:-1], 1)
    ends = [
        helper.make_tensor_value_info(*end)
        for end in (("x", TensorProto.FLOAT, input_shape), ("y", TensorProto.FLOAT, output_shape))
    ]
    places = {"first": 0, "last": 1, "axis": len(input_shape) - 1}
    constants = [numpy_helper.from_array(np.array([place], np.int64), name) for name, place in places.items()]
    node = helper.make_node("Slice", ["x", *places], ["y"])
    graph = helper.make_graph([node], "nothing", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", OPSET)]
    version = helper.find_min_ir_version_for(opsets)
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=version).SerializeToString())
