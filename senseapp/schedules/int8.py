"""Int8 ONNX files by onnxruntime's own quantizer, and which nodes are better left in float: measured in the runtime."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import Tensor

from senseapp.core.errors import InvalidSpec, first_line_of
from senseapp.schedules.true_float import computed_in_float

_SCOPES = "pkg.torch.onnx.name_scopes"
_TRIED = 24  # nodes, the most harmful first: what follows hardly counts, and each costs a file and its measurement
_TOGETHER = 2  # of those that gained nothing alone: a tensor stays in int8 while the node on its other end does
_LEAST_GAIN = 0.02  # of the damage that is left; what gains less is not worth its time


class Int8Writer:
    """Writes one float network as QDQ ONNX, any of its nodes in int8; activation ranges are found once.

    Weights are signed with a scale for each output channel, activations unsigned with a scale and zero point for the
    tensor. ``calibration`` are batches (N, C, H, W) whose smallest and largest values are the ranges. ``reduce_range``
    gives weights 7 bits: processors without VNNI saturate where two products of 8 bits are added in 16.

    Raises:
        InvalidSpec: onnxruntime cannot quantize it.
    """

    def __init__(
        self,
        network: bytes,
        calibration: Sequence[Tensor],
        *,
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
        self._network = Path(self._folder.name) / "float.onnx"  # a model in memory would be changed by the quantizer
        self._network.write_bytes(network)
        self._input, self._calibration = onnx.load_from_string(network).graph.input[0].name, calibration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def write(self, *, only: Collection[str] = (), but: Collection[str] = ()) -> bytes:
        """Return the network with every node in int8 that can be, or ``only`` those, ``but`` not the others."""
        target = Path(self._folder.name) / "int8.onnx"
        try:
            quantize_static(
                self._network,
                target,
                _Images(self._input, self._calibration),
                nodes_to_quantize=list(only),
                nodes_to_exclude=list(but),
                calibration_cache_path=Path(self._folder.name) / "ranges.json",
                **self._settings,
            )
        except Exception as error:  # it raises errors of many packages
            raise InvalidSpec(
                f"onnxruntime cannot write this network in int8: {type(error).__name__}: {first_line_of(error)}."
            ) from error
        return computed_in_float(target.read_bytes())


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
    plumbing = {"QuantizeLinear", "DequantizeLinear"}
    return [
        node.name
        for node in graph.node
        if node.op_type not in plumbing and dequantized & set(node.input) and not in_float & set(node.input)
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
        in_float: names of the nodes that do, the most harmful in int8 first.
        damage: by node, that of this node alone in int8, everything else in float.
    """

    content: bytes
    in_float: tuple[str, ...]
    damage: Mapping[str, float]


def mixed(
    writer: Int8Writer,
    *,
    always_float: Collection[str] = (),
    damage_of: Callable[[bytes], float],
    is_quick_enough: Callable[[bytes], bool],
    enough: float = 0.0,
    progress: Callable[[str], None],
) -> Mixed:
    """Return the int8 file whose most harmful nodes are in float, as long as it stays quick enough.

    Each node is first measured alone in int8. From the most harmful on, a node goes back to float where the whole file
    then does less damage on the same images, by itself or with those tried before it, and is kept there only so. The
    search ends at a damage of ``enough``.
    """
    best = writer.write(but=always_float)
    nodes = int8_nodes(best)
    damage = {}
    for index, node in enumerate(nodes):
        progress(f"Measuring each part in int8 · {index} of {len(nodes)}")
        damage[node] = damage_of(writer.write(only=[node]))
    least = damage_of(best)
    in_float: list[str] = []
    rejected: list[str] = []
    ranked = sorted(nodes, key=lambda name: -damage[name])[:_TRIED]
    for index, node in enumerate(ranked):
        progress(f"Choosing what stays in float · {index} of {len(ranked)}")
        for group in ([node], [*rejected[-_TOGETHER:], node])[: 2 if rejected else 1]:
            if least <= enough or len(in_float) + len(group) >= len(nodes):
                continue
            candidate = writer.write(but=[*always_float, *in_float, *group])
            found = damage_of(candidate)
            if found < (1 - _LEAST_GAIN) * least and is_quick_enough(candidate):
                best, least, in_float, rejected = candidate, found, [*in_float, *group], []
                break
        else:
            rejected.append(node)
    return Mixed(content=best, in_float=tuple(in_float), damage=damage)
