"""Whether files keep the time that they were allowed: the search's timing on 50 small cases, each timed again."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from benchmarks.real.rows import Row
from senseapp.prove.float_nodes import mixed
from senseapp.prove.int8_files import TIME_MARGIN
from senseapp.runtimes.base import TURNS, ratio
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, Rounding
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.runtime import machine

_CASES, _SEARCH_TURNS, _AGAIN = 50, 15, 101
_ALLOWED = (1.05, 1.1, 1.2, 1.3, 1.5)  # times all-int8's
INTRO = (
    f"{machine()}; load {os.getloadavg()[0]:.1f} at the start (0 is an idle machine). {_CASES} networks of four to "
    "nine convolutions with random weights, channels and sizes. Nodes are left in float as by a search, with made-up "
    "gains that make it use all of its time; a file that its second timing finds too slow gives nodes back. Each is "
    f"timed again in turns with all-int8, medians of {_AGAIN} calls."
)


def rows() -> Iterator[Row]:
    """Yield how many files took longer than was allowed when they were timed again, and what was said of them."""
    found = [_measured(seed) for seed in range(_CASES)]
    late = [(ratio_, said) for ratio_, said in found if ratio_ > 1]
    used = float(np.median([ratio_ for ratio_, _ in found]))
    yield Row(
        what=f"Files that take longer than was allowed and were not said to, of {_CASES}",
        wanted="0",
        found=f"{sum(not said for _, said in late)} ({len(late)} longer, {sum(said for _, said in late)} of them said; "
        f"the most {max(each for each, _ in found):.2f} of the time allowed, the median {used:.2f})",
        holds=all(said for _, said in late),
    )


def network(seed: int, *, opset: int = 18) -> bytes:
    """Return a chain of convolutions with ReLU between them."""
    generator = np.random.default_rng(seed)
    channels, side = [3], int(generator.choice([24, 32, 48]))
    nodes, constants, given = [], [], "x"
    for place in range(int(generator.integers(4, 10))):
        channels.append(int(generator.choice([16, 24, 32, 48])))
        weight = generator.standard_normal((channels[-1], channels[-2], 3, 3)) / np.sqrt(9 * channels[-2])
        constants.append(numpy_helper.from_array(weight.astype(np.float32), f"w{place}"))
        nodes += [
            helper.make_node("Conv", [given, f"w{place}"], [f"c{place}"], f"conv{place}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{place}"], [f"r{place}"], f"relu{place}"),
        ]
        given = f"r{place}"
    image, made = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", count, side, side])
        for name, count in (("x", 3), (given, channels[-1]))
    )
    graph = helper.make_graph(nodes, "chain", [image], [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())


def _measured(seed: int) -> tuple[float, bool]:
    """Return the time of a file to the time that it was allowed, and whether the search said that it takes longer."""
    content, most = network(seed), _ALLOWED[seed % len(_ALLOWED)]
    size = onnx.load_from_string(content).graph.input[0].type.tensor_type.shape.dim[2].dim_value
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(seed))
    with Int8Writer(content, [image], rounding=Rounding()) as writer:
        all_int8 = writer.write()
        nodes = [node.name for node in writer.nodes(all_int8)]
        owners = {node: node for node in nodes}
        times = OPERATIONS.time_layers(content, all_int8, owners)
        seconds = {each.layer: {} for each in times.times}
        for each in times.times:
            seconds[each.layer][each.level] = each.seconds
        gains = dict(zip(nodes, np.random.default_rng(seed).lognormal(0, 1, len(nodes)), strict=True))

        def damage_of(file: bytes) -> float:
            left = {node.name for node in writer.nodes(file)}
            return 1e-3 + sum(gain for node, gain in gains.items() if node in left)

        def seconds_of(in_float: object) -> float:
            inside = set(nodes).difference(in_float)  # type: ignore[call-overload]
            own = sum(each[8.0 if name in inside else 32.0] for name, each in seconds.items())
            return own + times.between(inside)

        def time_of(file: bytes, turns: int) -> float:
            pair = [OPERATIONS.open(each, threads=1) for each in (file, all_int8)]
            return ratio(*OPERATIONS.times(pair, image, turns=turns)).value

        found = mixed(
            writer,
            screen=damage_of,
            damage_of=damage_of,
            seconds_of=seconds_of,
            is_quick_enough=lambda file: time_of(file, _SEARCH_TURNS) <= TIME_MARGIN * most,
            holds_time=lambda file: time_of(file, TURNS) <= TIME_MARGIN * most,
            uses_time=True,
            progress=lambda _step: None,
        )
        return time_of(found.content, _AGAIN) / most, not found.in_time
