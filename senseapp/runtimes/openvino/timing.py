"""How long each layer takes in OpenVINO on this machine, by the graphs that it executes.

The float file and the file all in int8 are run as they are, and OpenVINO's counters give the time of each node that it
executes. A node belongs to the layer whose product it computes; others (an activation that int8 parts from its
convolution, another order of memory) belong to the layer before them. What a change between float and int8 costs is
taken from a chain of convolutions: in float, in int8, and with one of them in float between two in int8.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from senseapp.compat.openvino_internals import ExecutedNode
from senseapp.core.errors import InvalidSpec
from senseapp.records.deployment import INT8_BITS, Conversion, LayerTime, LayerTimes
from senseapp.runtimes.onnxruntime.bench import OPSET
from senseapp.runtimes.onnxruntime.int8 import int8_nodes
from senseapp.runtimes.onnxruntime.timing import FLOAT_BITS, crossings, shapes_of, wall_seconds
from senseapp.runtimes.openvino.profile import executed_seconds
from senseapp.runtimes.openvino.runtime import OpenVinoModel, machine

_CHAIN = (1, 64, 28, 28)
_CONVS = 3
_SCALE = np.float32(0.02)


def time_layers(
    network: bytes, int8: bytes, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
) -> LayerTimes:
    """Return the times of layers of a float ``network``, whose file in ``int8`` has all of them in int8.

    ``owners`` has the layer that a node belongs to, for the nodes of layers.

    Raises:
        InvalidSpec: OpenVINO executes none of them.
    """
    graph = onnx.load_from_string(network).graph
    shapes = shapes_of(graph, batch)
    tensors = {name: owners[node.name] for node in graph.node if node.name in owners for name in node.output}
    (real, real_rest), (whole, whole_rest) = (
        by_layer(executed_seconds(file, threads, batch), {**tensors, **owners}) for file in (network, int8)
    )
    layers = [each for each in dict.fromkeys(owners.values()) if each in real or each in whole]
    if not layers:
        raise InvalidSpec("No layer of this network is one whose time can be taken.")
    walls = wall_seconds(
        [OpenVinoModel(file, threads=threads) for file in (network, int8)], shapes[graph.input[0].name]
    )
    sums = [sum(real.values()) + real_rest, sum(whole.values()) + whole_rest]
    slower = walls / np.array(sums)  # than the sum of their nodes
    between = (slower[1] * whole_rest - slower[0] * real_rest) / len(layers)
    rate = slower.mean() * _crossing_seconds(threads)
    edges = crossings(graph, owners, set(int8_nodes(int8)), shapes)
    return LayerTimes(
        times=(
            *(
                LayerTime(layer=each, level=FLOAT_BITS, seconds=float(slower[0] * real.get(each, 0.0)))
                for each in layers
            ),
            *(
                LayerTime(
                    layer=each,
                    level=float(INT8_BITS),
                    seconds=max(0.0, float(slower[1] * whole.get(each, 0.0) + between)),
                )
                for each in layers
            ),
        ),
        other_seconds=float(slower[0] * real_rest),
        conversions=tuple(
            Conversion(first=first, second=second, seconds=float(rate * values))
            for (first, second), (values, _) in edges.items()
        ),
        source=f"measured on {machine()}",
        measured_here=True,
    )


def by_layer(
    nodes: Mapping[str, tuple[ExecutedNode, float]], owners: Mapping[str, str]
) -> tuple[dict[str, float], float]:
    """Return the seconds of executed nodes by layer, and those of nodes that no layer comes before."""
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


def _crossing_seconds(threads: int) -> float:
    """Return the seconds of a value that goes from int8 to float or back, the mean of both ways."""
    real, whole, mixed = (
        sum(spent for _, spent in executed_seconds(_chain(kinds), threads, 1).values())
        for kinds in ((False,) * _CONVS, (True,) * _CONVS, (True, False, True))
    )
    expected = whole + (real - whole) / _CONVS
    return max(0.0, mixed - expected) / (2 * math.prod(_CHAIN))


def _chain(in_int8: tuple[bool, ...]) -> bytes:
    """Return convolutions of 1 × 1 one after the other, each in int8 or in float."""
    generator, channels = np.random.default_rng(0), _CHAIN[1]
    weights = generator.integers(-60, 60, (channels, channels, 1, 1), dtype=np.int8)
    constants = {"scale": _SCALE, "zero": np.uint8(128), "int8": weights, "float": weights * _SCALE}
    nodes = [helper.make_node("DequantizeLinear", ["int8", "scale"], ["weight"])]
    tensor = "x"
    for place, is_int8 in enumerate(in_int8):
        if is_int8 or in_int8[max(0, place - 1)]:
            names = [f"rounded{place}", f"real{place}"]
            nodes.append(helper.make_node("QuantizeLinear", [tensor, "scale", "zero"], names[:1]))
            nodes.append(helper.make_node("DequantizeLinear", [names[0], "scale", "zero"], names[1:]))
            tensor = names[1]
        nodes.append(helper.make_node("Conv", [tensor, "weight" if is_int8 else "float"], [f"y{place}"]))
        tensor = f"y{place}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, _CHAIN) for name in ("x", tensor)]
    initializers = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], initializers)
    opsets = [helper.make_opsetid("", OPSET)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
