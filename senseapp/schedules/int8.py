"""Int8 ONNX files by onnxruntime's own quantizer, and which nodes are better left in float: measured in the runtime."""

from __future__ import annotations

import ast
import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import Tensor

from senseapp.core.errors import InvalidSpec, first_line_of
from senseapp.schedules.rounding.calibration import Range, RoundedProduct
from senseapp.schedules.true_float import computed_in_float

PRODUCTS_WITH_FLOAT_OUTPUT = ("Gemm", "MatMul")
"""What onnxruntime computes in int8 also where the output is not rounded."""
_PLUMBING = ("QuantizeLinear", "DequantizeLinear")
_ELEMENTWISE = ("Add", "Mul", "Sub", "Div")
FUSED = ("Clip", "Relu")
_SCOPES = "pkg.torch.onnx.name_scopes"
_TRIED = 24  # nodes, the most harmful first: what follows hardly counts, and each costs a file and its measurement
_TOGETHER = 2  # of those that gained nothing alone: a tensor stays in int8 while the node on its other end does
_BEST = 8  # nodes, that are also measured with what reads them
_LEAST_GAIN = 0.02  # of the damage that is left; what gains less is not worth its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """What an int8 file rounds to where it is not onnxruntime's quantizer that decides.

    Attributes:
        ranges: by tensor, the smallest and the largest value that 8 bits span.
        products: by node, weights and biases.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    products: Mapping[str, RoundedProduct] = field(default_factory=dict)


class Int8Writer:
    """Writes one float network as QDQ ONNX, any of its nodes in int8; activation ranges are found once.

    Weights are signed with a scale for each output channel, activations unsigned with a scale and zero point for the
    tensor. ``calibration`` are batches (N, C, H, W) whose smallest and largest values are the ranges where ``rounding``
    has none; one is set after the first file. With a ``rounding``, values that pass from one node in float to another
    are not rounded between them, nor is the network's output. ``reduce_range`` gives weights without one 7 bits.

    Raises:
        InvalidSpec: onnxruntime cannot quantize it.
    """

    def __init__(
        self,
        network: bytes,
        calibration: Sequence[Tensor],
        *,
        rounding: Rounding | None = None,
        per_channel: bool = True,
        reduce_range: bool = False,
    ) -> None:
        self._settings: dict[str, Any] = {
            "quant_format": QuantFormat.QDQ,
            "activation_type": QuantType.QUInt8,
            "weight_type": QuantType.QInt8,
            "per_channel": per_channel,
            "reduce_range": reduce_range,
        }
        self._folder = tempfile.TemporaryDirectory()
        self.network, self.reduce_range, self._path = network, reduce_range, Path(self._folder.name) / "float.onnx"
        graph = onnx.load_from_string(network).graph
        self._makers = {name: node.name for node in graph.node for name in node.output}
        self._input, self._calibration = graph.input[0].name, calibration
        self.rounding = rounding

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def write(self, *, only: Collection[str] = (), but: Collection[str] = ()) -> bytes:
        """Return the network with every node in int8 that can be, or ``only`` those, ``but`` not the others."""
        target = Path(self._folder.name) / "int8.onnx"
        model = onnx.load_from_string(self.network)
        in_float = {node.name for node in model.graph.node if (only and node.name not in only) or node.name in but}
        for node in model.graph.node:  # in order, so that what follows what follows is reached too
            if node.op_type in FUSED and self._makers.get(node.input[0]) in in_float:
                in_float.add(node.name)
        overrides = _apply(self.rounding, model, in_float) if self.rounding else {}
        self._path.write_bytes(model.SerializeToString())  # a model in memory would be changed by the quantizer
        try:
            with _without_warnings():
                quantize_static(
                    self._path,
                    target,
                    _Images(self._input, self._calibration),
                    nodes_to_quantize=list(only),
                    nodes_to_exclude=list(but),
                    calibration_cache_path=Path(self._folder.name) / "ranges.json",
                    extra_options={"TensorQuantOverrides": overrides},
                    **self._settings,
                )
        except Exception as error:  # it raises errors of many packages
            raise InvalidSpec(
                f"onnxruntime cannot write this network in int8: {type(error).__name__}: {first_line_of(error)}."
            ) from error
        content = target.read_bytes()
        return computed_in_float(_less_rounded(content, in_float) if self.rounding else content)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hush the quantizer, which recommends at each file to shape it first."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _apply(rounding: Rounding, model: onnx.ModelProto, in_float: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Put the rounded weights of nodes in int8 into ``model``; return what its quantizer must keep to, by tensor."""
    overrides: dict[str, list[dict[str, Any]]] = {
        tensor: [{"rmin": np.float32(low), "rmax": np.float32(high)}] for tensor, (low, high) in rounding.ranges.items()
    }
    constants = {each.name: each for each in model.graph.initializer}
    for node, found in rounding.products.items():
        if node in in_float:
            continue
        product = found.product
        constants[product.weight].CopyFrom(numpy_helper.from_array(found.weight.numpy(), product.weight))
        if product.bias is not None and found.offsets is not None:
            constants[product.bias].CopyFrom(numpy_helper.from_array(found.offsets.numpy(), product.bias))
        overrides[product.weight] = [
            {"axis": product.channel_axis, "quant_type": QuantType.QInt8, "scale": scale, "zero_point": np.int8(0)}
            for scale in found.scale.numpy()
        ]
    return overrides


def _less_rounded(content: bytes, in_float: Collection[str]) -> bytes:
    """Return a QDQ file without rounding between nodes in float, and of the output of a product."""
    model = onnx.load_from_string(content)
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    outputs = {each.name for each in graph.output}
    for last in [node for node in graph.node if node.op_type == "DequantizeLinear"]:
        first = makers.get(last.input[0])
        source = makers.get(first.input[0]) if first is not None and first.op_type == "QuantizeLinear" else None
        if first is None or source is None:
            continue
        readers = [node for node in graph.node if last.output[0] in node.input]
        if last.output[0] in outputs and source.op_type in PRODUCTS_WITH_FLOAT_OUTPUT and not readers:
            source.output[0] = last.output[0]
            graph.node.remove(last)
        elif source.name in in_float:
            for node in readers:
                if node.name in in_float:
                    node.input[:] = [first.input[0] if name == last.output[0] else name for name in node.input]
    for kind in ("DequantizeLinear", "QuantizeLinear"):
        read = {name for node in graph.node for name in node.input} | outputs
        for node in [node for node in graph.node if node.op_type == kind and node.output[0] not in read]:
            graph.node.remove(node)
    return bytes(model.SerializeToString())


class _Images(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
    """Shows images to onnxruntime's calibration, batch by batch."""

    def __init__(self, name: str, batches: Sequence[Tensor]) -> None:
        self._feeds: Iterator[dict[str, Any]] = ({name: batch.cpu().contiguous().numpy()} for batch in batches)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch by the name of the input; None after the last."""
        return next(self._feeds, None)


def int8_nodes(content: bytes) -> list[str]:
    """Return the names of the nodes of a QDQ file that compute on int8 values, weights included, in order."""
    graph = onnx.load_from_string(content).graph
    dequantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    real = onnx.TensorProto.FLOAT
    in_float = {each.name for each in graph.initializer if len(each.dims) > 1 and each.data_type == real}
    return [
        node.name
        for node in graph.node
        if node.op_type not in _PLUMBING and dequantized & set(node.input) and not in_float & set(node.input)
    ]


def layers_of_nodes(network: bytes, layers: Collection[str]) -> dict[str, str]:
    """Return the layer, one of ``layers``, that each node of a network exported by torch belongs to, where one does.

    A node's weight is called as in the network, also where a norm was folded into it; the weight of a linear layer is
    turned and renamed, and the scopes of the node say where it comes from.
    """
    found = {}
    for node in onnx.load_from_string(network).graph.node:
        scopes = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "[]")
        owners = [name.rpartition(".")[0] for name in node.input]
        for candidate in (*owners, *reversed(ast.literal_eval(scopes))):
            if candidate in layers:
                found[node.name] = candidate
                break
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """An int8 file in which some nodes compute in float.

    Attributes:
        in_float: names of the nodes that do, in the order in which they were chosen.
        gain: by node, how much less damage the file does where this node alone is in float.
    """

    content: bytes
    in_float: tuple[str, ...]
    gain: Mapping[str, float]


def mixed(
    writer: Int8Writer,
    *,
    always_float: Collection[str] = (),
    damage_of: Callable[[bytes], float],
    is_quick_enough: Callable[[bytes], bool],
    enough: float = 0.0,
    most: int | None = None,
    progress: Callable[[str], None],
) -> Mixed:
    """Return the int8 file whose most harmful nodes are in float, as long as it stays quick enough.

    Each node is first measured in float beside all others in int8, and so are all additions and the like together, and
    what follows one of the best. From the most gainful on, a group of nodes goes to float where the whole file then
    does less damage on the same images, by itself or with those tried before it, and is kept there only so. Nodes that
    gain nothing beside those chosen later go back. The search ends at a damage of ``enough``, or with ``most`` nodes.
    """
    return _Search(writer, tuple(always_float), damage_of, is_quick_enough, enough, most, progress).found()


@dataclass
class _Search:
    writer: Int8Writer
    always_float: tuple[str, ...]
    damage_of: Callable[[bytes], float]
    is_quick_enough: Callable[[bytes], bool]
    enough: float
    most: int | None
    progress: Callable[[str], None]

    def found(self) -> Mixed:
        best = self._with(())
        nodes, least = int8_nodes(best), self.damage_of(best)
        gains: dict[tuple[str, ...], float] = {}
        for index, node in enumerate(nodes):
            self.progress(f"Measuring each part in float · {index} of {len(nodes)}")
            gains[node,] = least - self.damage_of(self._with((node,)))
        alone = {node: gains[node,] for node in nodes}
        for group in _groups(best, nodes, alone):
            gains[group] = least - self.damage_of(self._with(group))
        in_float: tuple[str, ...] = ()
        rejected: tuple[str, ...] = ()
        ranked = sorted(gains, key=lambda group: -gains[group])[:_TRIED]
        for index, group in enumerate(ranked):
            self.progress(f"Choosing what stays in float · {index} of {len(ranked)}")
            for together in (group, (*rejected[-_TOGETHER:], *group))[: 2 if rejected else 1]:
                tried = tuple(dict.fromkeys((*in_float, *together)))
                if least <= self.enough or len(tried) >= len(nodes) or tried == in_float:
                    continue
                if self.most is not None and len(tried) > self.most:
                    continue
                candidate = self._with(tried)
                damage = self.damage_of(candidate)
                if damage < (1 - _LEAST_GAIN) * least and self.is_quick_enough(candidate):
                    best, least, in_float, rejected = candidate, damage, tried, ()
                    break
            else:
                rejected = (*rejected, *(node for node in group if node not in in_float))
        for node in in_float[:-1]:
            fewer = tuple(each for each in in_float if each != node)
            candidate = self._with(fewer)
            if (damage := self.damage_of(candidate)) <= least:
                best, least, in_float = candidate, damage, fewer
        return Mixed(content=best, in_float=in_float, gain=alone)

    def _with(self, in_float: Collection[str]) -> bytes:
        return self.writer.write(but=[*self.always_float, *in_float])


def _groups(content: bytes, nodes: Sequence[str], gain: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return nodes of a QDQ file that may gain together: those without weights, and the best with what reads them."""
    graph = onnx.load_from_string(content).graph
    by_name = {node.name: node for node in graph.node}
    readers: dict[str, list[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.name)

    def after(node: str) -> list[str]:
        """Return the nodes in int8 that read what ``node`` makes, across its rounding."""
        reached, names = [], list(by_name[node].output)
        while names:
            for reader in readers.get(names.pop(), []):
                if reader in nodes:
                    reached.append(reader)
                elif by_name[reader].op_type in _PLUMBING:
                    names += by_name[reader].output
        return reached

    weightless = tuple(node for node in nodes if by_name[node].op_type in _ELEMENTWISE)
    groups = [weightless] if len(weightless) > 1 else []
    for node in sorted(nodes, key=lambda name: -gain[name])[:_BEST]:
        groups += [(node, reader) for reader in after(node)]
    return list(dict.fromkeys(groups))
