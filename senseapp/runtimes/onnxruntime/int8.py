"""Int8 ONNX files by onnxruntime's own quantizer, with any of their nodes in float."""

from __future__ import annotations

import ast
import io
import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import Tensor

from senseapp.core.errors import InvalidSpec, UnsupportedModel, first_line_of, is_about_memory
from senseapp.core.texts import listed
from senseapp.runtimes.onnxruntime.qdq import PartlyInt8, unpacked_weights
from senseapp.runtimes.onnxruntime.rounding.bias import BiasCorrection
from senseapp.runtimes.onnxruntime.rounding.causes import causes
from senseapp.runtimes.onnxruntime.rounding.fitted_weights import RoundedProduct
from senseapp.runtimes.onnxruntime.rounding.ranges import Range
from senseapp.runtimes.quantizers import Quantizer, RoundingCause

PLUMBING = ("QuantizeLinear", "DequantizeLinear")
"""What turns values into integers and back."""
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_COARSE = (
    "In float, as one scale for all that they join would leave the smaller part fewer than 32 of its 256 steps, or as "
    "they read such a result: {}."
)
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """What an int8 file rounds to where it is not onnxruntime's quantizer that decides.

    Attributes:
        ranges: by tensor, the smallest and the largest value that 8 bits span.
        products: by node, weights and biases.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    products: Mapping[str, RoundedProduct] = field(default_factory=dict)


class Int8Writer(Quantizer):
    """Writes one float network as QDQ ONNX, any of its nodes in float; onnxruntime's quantizer runs once per rounding.

    Weights are signed with a scale for each output channel, activations unsigned with a scale and zero point for the
    tensor. ``calibration`` are batches (N, C, H, W) whose smallest and largest values are the ranges where ``rounding``
    has none. A file without ``rounding`` and nodes in float is as the quantizer wrote it: sums of its
    products saturate on processors without VNNI. With one, the weights that it leaves out have 7 bits, and with
    ``reduce_range`` all have; ``any_order`` asks of it that its weights never saturate, in whichever order a runtime
    multiplies. The nodes ``in_float`` stay so in every file, with those that int8 would destroy
    (:attr:`.PartlyInt8.coarse`), and :meth:`finished` ones are corrected by ``correction``, if any.

    Raises:
        InvalidSpec: onnxruntime cannot quantize it.
    """

    def __init__(
        self,
        network: bytes,
        calibration: Sequence[Tensor],
        *,
        rounding: Rounding | None = None,
        reduce_range: bool = False,
        any_order: bool = False,
        in_float: Collection[str] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.network, self.reduce_range, self._path = network, reduce_range, Path(self._folder.name) / "float.onnx"
        self.any_order, self.in_float = any_order, frozenset(in_float)
        self._calibration = calibration
        self._rounding = rounding
        self._all: tuple[bytes, PartlyInt8] | None = None
        self.correction: BiasCorrection | None = None
        self._finished: dict[bytes, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    @property
    def rounding(self) -> Rounding | None:
        """What files round to; None as onnxruntime's quantizer has it."""
        return self._rounding

    @rounding.setter
    def rounding(self, rounding: Rounding | None) -> None:
        self._rounding, self._all = rounding, None

    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the network with every node in int8 that can be; see :meth:`.Quantizer.write`."""
        if self._all is None:
            int8 = self._quantized()
            products = self._rounding.products if self._rounding else {}
            biases = {
                node: each.float_offsets.numpy() for node, each in products.items() if each.float_offsets is not None
            }
            parts = PartlyInt8(onnx.load_from_string(self.network).graph, onnx.load_from_string(int8), biases)
            self._all, coarse = (int8, parts), [name for name in parts.coarse if name not in self.in_float]
            if coarse:
                self.in_float, self.notes = self.in_float.union(coarse), (*self.notes, _COARSE.format(listed(coarse)))
        int8, parts = self._all
        in_float = self.in_float.union(but)
        return parts.content(in_float, weights_only) if in_float or weights_only or self._rounding else int8

    def finished(self, content: bytes) -> bytes:
        """Return a file with corrected biases, where there is a :attr:`correction`."""
        if self.correction is None:
            return content
        if content not in self._finished:
            self._finished = {content: self.correction.corrected(content)}  # the last one is asked for several times
        return self._finished[content]

    def nodes(self, content: bytes) -> list[str]:
        """Return the nodes of a file that compute on int8 values, in order."""
        return [name for name in int8_nodes(content) if name not in self.in_float]

    def causes(self, nodes: Collection[str] | None = None) -> Sequence[RoundingCause]:
        """Return what speaks against one scale for a tensor; see :func:`.rounding.causes.causes`."""
        return causes(self.network, self.write(), self._calibration, nodes)

    def _quantized(self) -> bytes:
        """Return the network all in int8."""
        model = onnx.load_from_string(self.network)
        overrides = _apply(self._rounding, model) if self._rounding else {}
        self._path.write_bytes(model.SerializeToString())  # a model in memory would be changed by the quantizer
        return quantized(
            self._path,
            Path(self._folder.name) / "int8.onnx",
            self._calibration,
            calibration_cache_path=Path(self._folder.name) / "ranges.json",
            activation_type=QuantType.QUInt8,
            per_channel=True,
            reduce_range=self.reduce_range or self._rounding is not None,
            extra_options={"TensorQuantOverrides": overrides},
        )


def quantized(network: Path, target: Path, calibration: Sequence[Tensor], **settings: Any) -> bytes:
    """Return the float file ``network`` in int8, written to ``target`` with ``settings`` of onnxruntime's quantizer.

    Weights are signed. ``calibration`` are batches (N, C, H, W).

    Raises:
        InvalidSpec: onnxruntime cannot quantize it.
    """
    images = _Images(onnx.load(network).graph.input[0].name, calibration)
    try:
        with _without_warnings():
            quantize_static(
                network, target, images, quant_format=QuantFormat.QDQ, weight_type=QuantType.QInt8, **settings
            )
    except Exception as error:  # it raises errors of many packages
        if is_about_memory(error):
            raise
        raise InvalidSpec(
            f"onnxruntime cannot write this network in int8: {type(error).__name__}: {first_line_of(error)}."
        ) from error
    return target.read_bytes()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hush the quantizer, which recommends at each file to shape it first, and prints what it collects."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _apply(rounding: Rounding, model: onnx.ModelProto) -> dict[str, list[dict[str, Any]]]:
    """Put the rounded weights into ``model``; return what its quantizer must keep to, by tensor."""
    overrides: dict[str, list[dict[str, Any]]] = {
        tensor: [{"rmin": np.float32(low), "rmax": np.float32(high)}] for tensor, (low, high) in rounding.ranges.items()
    }
    constants = {each.name: each for each in model.graph.initializer}
    for found in rounding.products.values():
        product = found.product
        constants[product.weight].CopyFrom(numpy_helper.from_array(found.weight.numpy(), product.weight))
        if product.bias is not None and found.offsets is not None:
            constants[product.bias].CopyFrom(numpy_helper.from_array(found.offsets.numpy(), product.bias))
        overrides[product.weight] = [
            {"axis": product.channel_axis, "quant_type": QuantType.QInt8, "scale": scale, "zero_point": np.int8(0)}
            for scale in found.scale.numpy()
        ]
    return overrides


class _Images(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
    """Shows images to onnxruntime's calibration, batch by batch."""

    def __init__(self, name: str, batches: Sequence[Tensor]) -> None:
        self._name, self._batches = name, batches
        self.set_range(0, len(batches))

    def __len__(self) -> int:
        return len(self._batches)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Show the batches from one to another next."""
        self._left = iter(self._batches[start_index:end_index])

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch by the name of the input; None after the last."""
        batch = next(self._left, None)
        return None if batch is None else {self._name: batch.cpu().contiguous().numpy()}


def int8_nodes(content: bytes) -> list[str]:
    """Return the names of the nodes of a QDQ file that compute on int8 values, weights included, in order."""
    graph = onnx.load_from_string(content).graph
    dequantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    real = onnx.TensorProto.FLOAT
    in_float = {each.name for each in graph.initializer if len(each.dims) > 1 and each.data_type == real}
    in_float |= unpacked_weights(graph)
    return [
        node.name
        for node in graph.node
        if node.op_type not in PLUMBING and dequantized & set(node.input) and not in_float & set(node.input)
    ]


_OPERATORS_OF_INTEGERS = frozenset(
    {
        *("QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat"),
        *("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention"),
    }
)


def multiplies_integers(content: bytes) -> bool:
    """Return whether nodes of a file compute on int8 values.

    Raises:
        UnsupportedModel: they are operators of integers, which have no form in float here.
    """
    used = {node.op_type for node in onnx.load_from_string(content).graph.node} & _OPERATORS_OF_INTEGERS
    if used:
        raise UnsupportedModel(
            f"What it does there is not known, as it holds operators of integers ({listed(sorted(used))}): run it "
            "there, or quantize in the QDQ format."
        )
    return bool(int8_nodes(content))


def weighted_nodes(content: bytes) -> set[str]:
    """Return the names of the nodes of a QDQ file that multiply with weights of 8 bits."""
    graph = onnx.load_from_string(content).graph
    constants = {each.name for each in graph.initializer if len(each.dims) > 1}
    weights = {each.output[0] for each in graph.node if each.op_type == PLUMBING[1] and each.input[0] in constants}
    return {node.name for node in graph.node if node.op_type in _WEIGHTED and node.input[1] in weights}


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
