"""onnxruntime as a :class:`~senseapp.runtimes.base.Runtime`: the implementation of each operation."""

import copy
import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import onnx
import onnxruntime
import torch
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from torch import Tensor, nn

from senseapp.compat.torch_internals import has_forward_hooks
from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.networks.onnx.graph import opset_of
from senseapp.networks.onnx.metadata import CLASSES, described
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.onnx.write import tensors_of
from senseapp.reconstruct.write import onnx_copy, onnx_program, optimized
from senseapp.records.deployment import LayerTimes, OperatorTime
from senseapp.records.executed import ExecutedNode
from senseapp.runtimes.base import Exporter, Runtime
from senseapp.runtimes.call_times import Kernel, processor, saturates
from senseapp.runtimes.onnxruntime import ONNXRUNTIME
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, layers_of_nodes, recipes_of
from senseapp.runtimes.onnxruntime.integer_weights import with_quantized_weights
from senseapp.runtimes.onnxruntime.rounding.saturation import on_other_processors
from senseapp.runtimes.onnxruntime.runtime import ForeignFile, RuntimeModel, kernels
from senseapp.runtimes.onnxruntime.timing import LayerProducts, by_operator, executed_nodes, layer_times, numbered
from senseapp.runtimes.open_file import OpenFile
from senseapp.runtimes.quantizers import DefaultInt8, Fitting, Quantizer, library_call


class OnnxRuntime(Runtime):
    """onnxruntime on the processor of this machine; a runtime of ONNX files opens, profiles and names its own.

    Int8 files are made of :meth:`float_graph`, on :meth:`inputs`: the network as it was exported, and images.
    """

    description = ONNXRUNTIME
    kit_package = ONNXRUNTIME.name
    may_saturate = True
    int8_note = (
        "Weights of convolutions and matrix products are chosen so that sums of two of their products with 8 bits fit "
        "in 16 bits, as processors without VNNI add them."
    )

    # ---- files and networks

    def exporter(self, model: nn.Module, example: Tensor) -> Exporter:
        """Return what exports ``model`` to ONNX once for all its weights."""
        return OnnxTemplate(model, example)

    def open(self, content: bytes, *, threads: int | None = None) -> OpenFile:
        """Open an ONNX file; raises InvalidSpec where the runtime cannot."""
        return self.opened(content, threads=threads)

    def as_it_is(self, content: bytes, *, threads: int | None = None) -> OpenFile:
        """Open an ONNX file of any program."""
        return ForeignFile(content, threads=threads)

    def opened(self, content: bytes, *, threads: int | None = None) -> OpenFile:
        """Return a file that takes what it declares."""
        return RuntimeModel(content, threads=threads)

    def for_file(self, opened: OpenedOnnx) -> Runtime:
        """Return onnxruntime on edited copies of an uploaded file."""
        from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime  # which is made of this class

        return UploadedRuntime(opened)

    def machine(self) -> str:
        """Return the processor and the runtime: ``AMD EPYC without VNNI, onnxruntime 1.32.0``."""
        return f"{processor()}, onnxruntime {onnxruntime.__version__}"

    def layers_of_nodes(self, content: bytes, layers: Collection[str]) -> dict[str, str]:
        """Return the layer that each node belongs to, by the names that torch's exporter leaves."""
        return layers_of_nodes(content, layers)

    # ---- what files hold beside the network

    def format_version(self, content: bytes) -> int:
        """Check the file by ONNX's own checker, and return its operator set."""
        model = onnx.load_from_string(content)
        onnx.checker.check_model(model)
        return opset_of(model)

    def described(self, content: bytes, told: Mapping[str, str]) -> bytes:
        """Return the file with these entries in its metadata."""
        return described(content, told)

    def class_names(self, content: bytes) -> tuple[str, ...]:
        """Return the class names in the file's metadata."""
        found = {entry.key: entry.value for entry in onnx.load_from_string(content).metadata_props}
        return tuple(json.loads(found.get(CLASSES, "[]")))

    def recipes(self, content: bytes) -> dict[str, str]:
        """Return the nodes in float of a QDQ file for onnxruntime's quantizer, NNCF and Qualcomm's NPU."""
        return recipes_of(content)

    def with_quantized_weights(self, content: bytes, integers: Mapping[str, IntegerWeight]) -> tuple[bytes, int]:
        """Return the file with weights as integers of 8 or 4 bits, which onnxruntime makes float when it opens it."""
        return with_quantized_weights(content, integers)

    # ---- int8

    def float_graph(self, content: bytes) -> bytes:
        """Return a plain graph of a float file: sorted, with a name for each node and constants as initializers."""
        return content

    def inputs(self, batches: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return images as calls of :meth:`float_graph` take them."""
        return batches

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Int8Writer:
        """Return what writes QDQ files, with weights of 7 bits and a scale for each channel."""
        return Int8Writer(self.float_graph(content), self.inputs(calibration))

    def fitted_quantizer(self, content: bytes, fitting: Fitting) -> Quantizer:
        """Return the same with fitted ranges, weights and biases, where that does less harm."""
        writer = self.quantizer(content, fitting.batches)
        fitting = replace(fitting, batches=self.inputs(fitting.batches), held_out=self.inputs(fitting.held_out))
        writer.fit(fitting)
        return writer

    def default_int8(self, content: bytes, fitting: Fitting) -> DefaultInt8 | None:
        """Return the file of ``quantize_static``, with weights of 7 bits where 8 saturate."""
        narrow = fitting.reduce_range or saturates()
        return default_int8(self.float_graph(content), self.inputs(fitting.batches), reduce_range=narrow)

    def on_other_processors(self, content: bytes) -> OpenFile | None:
        """Return a QDQ file with its products in float, which saturate where they do not here."""
        other = on_other_processors(content)
        return None if other is None else RuntimeModel(other, fused=False)

    # ---- times

    def kernels(self, content: bytes, *, threads: int, batch: int) -> list[Kernel]:
        """Return the kernels of a file that runs on some images, by the runtime's own profile."""
        return kernels(content, threads=threads, batch=batch)

    def operators(self, content: bytes, *, threads: int = 1, batch: int = 1) -> tuple[OperatorTime, ...]:
        """Return the seconds of all kernels by kind, called as in float: a ``QLinearConv`` is a ``Conv``."""
        return by_operator(self.kernels(content, threads=threads, batch=batch))

    def executed(self, content: bytes) -> tuple[ExecutedNode, ...]:
        """Return the nodes of a file that the runtime executes, by its own profile."""
        return executed_nodes(content, lambda file: self.kernels(file, threads=1, batch=1))

    def time_layers(
        self, content: bytes, quantizer: Quantizer | None, owners: Mapping[str, str], threads: int = 1, batch: int = 1
    ) -> LayerTimes:
        """Return the times of layers by the runtime's own profile; see :meth:`.Runtime.time_layers`."""
        files = [self.float_graph(content), *(() if quantizer is None else (quantizer.write(),))]
        products = LayerProducts(files[0], owners, batch)
        found = [self.kernels(numbered(each, products.nodes), threads=threads, batch=batch) for each in files]
        opened = [self.opened(each, threads=threads) for each in files]
        return layer_times(products, files, found, opened, source=f"measured on {self.machine()}")


def default_int8(network: bytes, batches: Sequence[Tensor], *, reduce_range: bool = False) -> DefaultInt8:
    """Return the file of ``quantize_static``, as its documentation advises for processors; ranges are of ``batches``.

    With ``reduce_range`` weights have 7 bits, as its documentation advises for processors on which 8 saturate.

    Raises InvalidSpec if onnxruntime cannot quantize it.
    """
    bits = "7-bit weights, " if reduce_range else ""
    setting = f"quantize_static, per channel, unsigned activations, {bits}min-max"
    name = onnx.load_from_string(network).graph.input[0].name
    feeds = iter([{name: batch.cpu().contiguous().numpy()} for batch in batches])
    images = SimpleNamespace(get_next=lambda: next(feeds, None))  # a CalibrationDataReader
    with tempfile.TemporaryDirectory() as folder, library_call("onnxruntime cannot write this network in int8"):
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        before.write_bytes(network)  # a model in memory would be changed by the quantizer
        quantize_static(
            before,
            after,
            images,
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=reduce_range,
        )
        return DefaultInt8(content=after.read_bytes(), setting=setting)


class OnnxTemplate:
    """A network that is exported once; networks that differ from it only in values of weights are not traced again.

    Tracing takes nine tenths of an export, weights the rest. It takes images as ``example``, (N, C, H, W).
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self.model, self.example = model, example

    def __call__(self, model: nn.Module) -> bytes:
        """Return ``model`` as float ONNX: what :func:`onnx_copy` returns, but for the names of nodes.

        Raises InvalidSpec where it cannot be exported.
        """
        if not self._differs_in_weights_only(model):
            return onnx_copy(model, self.example)
        program = copy.copy(self._program)
        program.model = self._program.model.clone()
        names = program.model.graph.initializers
        program.apply_weights({name: each.contiguous() for name, each in tensors_of(model).items() if name in names})
        return optimized(program)

    @cached_property
    def _program(self) -> torch.onnx.ONNXProgram:
        with torch.no_grad():
            return onnx_program(copy.deepcopy(self.model).cpu(), self.example)

    def _differs_in_weights_only(self, model: nn.Module) -> bool:
        """Whether both have modules of the same classes without hooks, and each tensor that differs can be replaced."""
        if _structure(model) != _structure(self.model) or any(map(has_forward_hooks, model.modules())):
            return False
        before, after = tensors_of(self.model), tensors_of(model)
        named = {each.data_ptr() for name, each in after.items() if name in self._program.model.graph.initializers}
        return all(each.data_ptr() in named or torch.equal(each, before[name]) for name, each in after.items())


def _structure(model: nn.Module) -> list[object]:
    """Return what is traced, but for values: classes of modules, shapes and types of tensors."""
    tensors = ((name, each.shape, each.dtype) for name, each in tensors_of(model).items())
    return [*((name, type(each)) for name, each in model.named_modules()), *tensors]


OPERATIONS = OnnxRuntime()
