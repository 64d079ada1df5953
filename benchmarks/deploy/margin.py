"""Whether files keep the time that they were allowed, and are quicker than float where that is said: 50 small cases."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from benchmarks.real.rows import Row
from senseapp.core.steps import OptionalSteps
from senseapp.prove.file_times import FileTimes
from senseapp.prove.mixed_precision import Group, MixedFiles, search_mixed_precision
from senseapp.prove.quantized_files import ROUNDING_BITS
from senseapp.records.candidate import is_clearly_less
from senseapp.records.deployment import Median
from senseapp.runtimes.call_times import TURNS, ratio
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, Rounding
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.runtime import machine
from senseapp.solve.node_precisions import NodeTimes, least_damage

_CASES, _FILES, _AGAIN, _OPENINGS = 50, 2, 31, 5
_SEED = 100  # of the first network: the rule of times was found on those of 0 to 49
_ALLOWED = (1.05, 1.1, 1.2, 1.3, 1.5)  # times all-int8's
_CLOSE = 0.95  # of float's time, that a second file is predicted to take
INTRO = (
    f"{machine()}; load {os.getloadavg()[0]:.1f} at the start (0 is an idle machine). {_CASES} networks of four to "
    "nine convolutions with random weights, channels and sizes. Nodes are left in float as by a search, with made-up "
    "gains that make it use all of its time; a file that its second timing finds too slow gives nodes back. Each is "
    f"timed again in turns with all-int8: the median of {_OPENINGS} openings of both, of each the median of {_AGAIN} "
    "calls. So is, with the float file, each file that is "
    "said to be quicker than that: the one of the search, and one with so many nodes in float that it is predicted to "
    f"take {_CLOSE} of its time."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """The files of one network.

    Attributes:
        content: the float file.
        file: that of the search, which may take ``most`` times as long as ``all_int8``.
        times: of files beside ``all_int8``, as the search has taken them.
        as_float: a file that is predicted to take hardly less than the float file.
    """

    image: Tensor
    content: bytes
    all_int8: bytes
    file: bytes
    most: float
    times: FileTimes
    as_float: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What is said of the files of one network when the search ends.

    Attributes:
        late: whether the file takes longer than was allowed.
        quicker: the files that are said to be quicker than float.
    """

    late: bool
    quicker: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Times of the files of one network, taken again.

    Attributes:
        of_allowed: the time of the file of the search to the time that it was allowed.
        said: whether it was said to take longer.
        of_float: the times of files that were said to be quicker than float, to float's.
    """

    of_allowed: float
    said: bool
    of_float: tuple[float, ...]


def rows() -> Iterator[Row]:
    """Yield how many files took longer than was allowed when they were timed again, and what was said of them.

    All are made, then judged as the end of a search judges, then timed again, as a machine is busier at some times.
    """
    made = [_made(seed) for seed in range(_SEED, _SEED + _CASES)]
    said = [_said(each) for each in made]
    yield from _rows([_again(*each) for each in zip(made, said, strict=True)])


def _rows(found: Sequence[_Measured]) -> Iterator[Row]:
    late = [each for each in found if each.of_allowed > 1]
    used = float(np.median([each.of_allowed for each in found]))
    yield Row(
        what=f"Files that take longer than was allowed and were not said to, of {_CASES}",
        wanted="0",
        found=f"{sum(not each.said for each in late)} ({len(late)} longer, {sum(each.said for each in late)} of them "
        f"said; the most {max(each.of_allowed for each in found):.2f} of the time allowed, the median {used:.2f})",
        holds=all(each.said for each in late),
    )
    quicker = [each for case in found for each in case.of_float]
    yield Row(
        what=f"Files slower than float that were said to be quicker, of {_FILES * _CASES}",
        wanted="0",
        found=f"{sum(each > 1 for each in quicker)} ({len(quicker)} were said to be quicker; the slowest takes "
        f"{max(quicker, default=0):.2f} of float's time, the median {np.median(quicker or [0]):.2f})",
        holds=all(each <= 1 for each in quicker),
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


class _Files(MixedFiles):
    """Files of made-up damages, whose times are measured."""

    def __init__(
        self, writer: Int8Writer, times: FileTimes, most: float, gains: Mapping[str, float], seconds: NodeTimes
    ) -> None:
        self._writer, self._times, self._most, self._gains = writer, times, most, gains
        self.nodes, self.seconds = tuple(gains), seconds

    def content(self, in_float: Group) -> bytes:
        return self._writer.write(weights_only=in_float)

    def num_bytes(self, in_float: Group, float_weights: Group = ()) -> int:
        return 1

    def damage(self, in_float: Group, float_weights: Group = ()) -> float:
        return 1e-3 + sum(gain for node, gain in self._gains.items() if node not in in_float)

    def rough_damage(self, in_float: Group) -> float:
        return self.damage(in_float)

    def damage_alone(self, in_int8: Group) -> float:
        return self.damage(tuple(set(self.nodes) - set(in_int8)))

    def is_enough(self, in_float: Group) -> bool:
        return False

    def rough_time(self, in_float: Group) -> float:
        return self._times.measure_rough(self.content(in_float)) / self._most

    def keeps_time(self, in_float: Group) -> bool:
        return self._times.is_within(self.content(in_float), self._most)


def _made(seed: int) -> _Made:
    """Return the files of one network."""
    content, most = network(seed), _ALLOWED[seed % len(_ALLOWED)]
    size = onnx.load_from_string(content).graph.input[0].type.tensor_type.shape.dim[2].dim_value
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(seed))
    with Int8Writer(content, [image], rounding=Rounding()) as writer:
        all_int8 = writer.write()
        nodes = writer.nodes(all_int8)
        owners = {node: node for node in nodes}
        seconds_of = NodeTimes.of(OPERATIONS.time_layers(content, writer, owners), nodes, ROUNDING_BITS)
        gains = dict(zip(nodes, np.random.default_rng(seed).lognormal(0, 1, len(nodes)), strict=True))

        kept = FileTimes(OPERATIONS, all_int8, image, threads=1)
        files = _Files(writer, kept, most, gains, seconds_of)
        found = search_mixed_precision(files, OptionalSteps())
        as_float = least_damage(gains, seconds_of, _CLOSE * seconds_of(nodes)) or ()
        return _Made(
            image=image,
            content=content,
            all_int8=all_int8,
            file=files.content(found.in_float),
            most=most,
            times=kept,
            as_float=writer.write(weights_only=as_float),
        )


def _time(file: bytes, reference: bytes, image: Tensor, turns: int) -> Median:
    pair = [OPERATIONS.open(each, threads=1) for each in (file, reference)]
    return ratio(*OPERATIONS.times(pair, image, turns=turns))


def _said(made: _Made) -> _Said:
    late = made.times.measure_precise(made.file).high > made.most
    figures = {file: _time(file, made.content, made.image, TURNS) for file in (made.file, made.as_float)}
    return _Said(
        late=late,
        quicker=tuple(file for file, time in figures.items() if is_clearly_less(time)),
    )


def _again(made: _Made, said: _Said) -> _Measured:
    def time_to(reference: bytes, file: bytes) -> float:
        return statistics.median(_time(file, reference, made.image, _AGAIN).value for _ in range(_OPENINGS))

    return _Measured(
        of_allowed=time_to(made.all_int8, made.file) / made.most,
        said=said.late,
        of_float=tuple(time_to(made.content, file) for file in said.quicker),
    )
