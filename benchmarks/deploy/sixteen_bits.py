"""Whether onnxruntime computes 16-bit activations in integers: the kernels of a QDQ file of opset 21, and its time."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnxruntime
import torch
from onnxruntime.quantization import QuantType

from benchmarks.deploy.margin import network
from benchmarks.real.rows import Row
from senseapp.runtimes.call_times import TURNS, ratio
from senseapp.runtimes.onnxruntime.int8 import quantized
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.runtime import machine

_KINDS = {"8 bits": QuantType.QUInt8, "16 bits, unsigned": QuantType.QUInt16, "16 bits, signed": QuantType.QInt16}
INTRO = (
    f"{machine()}. One network of convolutions and ReLU, opset 21, by quantize_static with weights of 8 bits per "
    "channel and activations of 8 or 16; times are multiples of the float file's, in turns, one thread."
)


def rows() -> Iterator[Row]:
    """Yield the kernels and the time of a file for each kind of activations."""
    content = network(0, opset=21)
    side = onnx.load_from_string(content).graph.input[0].type.tensor_type.shape.dim[2].dim_value
    images = torch.rand(16, 3, side, side, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        path.write_bytes(content)
        for name, kind in _KINDS.items():
            file = quantized(path, Path(folder) / "file.onnx", [images], activation_type=kind, per_channel=True)
            opened = [OPERATIONS.open(each, threads=1) for each in (file, content)]
            time = ratio(*OPERATIONS.times(opened, images[:1], turns=TURNS)).value
            kernels = _kernels(file, Path(folder) / "optimised.onnx")
            integers, roundings = kernels["QLinearConv"], kernels["QuantizeLinear"] + kernels["DequantizeLinear"]
            yield Row(
                what=f"Activations of {name}",
                wanted="(told)",
                found=f"{integers} of {integers + kernels['Conv']} convolutions in integers, "
                f"{roundings} roundings apart; {time:.2f} of float's time",
                holds=True,
            )


def _kernels(content: bytes, path: Path) -> Counter[str]:
    """Return the operators that onnxruntime runs, after its optimisations."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(path).graph.node)
