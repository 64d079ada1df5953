"""An ONNX file that is open in a runtime: the common part of all runtimes of ONNX files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from senseapp.networks.network import nested
from senseapp.runtimes.foreign import RuntimeNetwork


class OnnxSession(RuntimeNetwork):
    """An open ONNX file with one input, and outputs that ONNX has flattened.

    Attributes:
        nesting: how the outputs were nested in the network (:func:`~senseapp.networks.network.nesting_text`); None for
            one tensor alone.
    """

    nesting: str | None

    @property
    @abstractmethod
    def input_type(self) -> str:
        """Type of the numbers that it takes, as ``float32``."""

    @abstractmethod
    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        """Return all outputs for ``images``, as many as :attr:`fixed_batch` says, by name."""

    def run(self, batch: Tensor) -> object:
        """Return the output for ``batch``, (N, C, H, W) of as many images as :attr:`fixed_batch` says, float32.

        It is nested as the network's own output: a single tensor where it is one.
        """
        found = [each.float() if each.is_floating_point() else each for each in self.tensors(batch).values()]
        return found[0] if self.nesting is None else nested(found, self.nesting)

    def as_input(self, images: Tensor) -> npt.NDArray[Any]:
        """Return images as the file takes them: float32 but for uploaded files."""
        return np.ascontiguousarray(images.detach().cpu().numpy().astype(self.input_type))


_CHANNELS = 64  # of the convolution that tells whether a runtime saturates


@cache
def saturates(opened: Callable[[bytes], OnnxSession]) -> bool:
    """Return whether sums of products of 8 bits saturate on this processor, in the runtime that opens files so.

    Kernels for AVX2 or AVX-512 without VNNI add two products in 16 bits, ``VPMADDUBSW``: here 2 · 255 · 127, twice what
    these hold. A convolution of ones with ones of :data:`_CHANNELS` channels tells, whatever the runtime found out
    about the processor, or was told by its variables (``ONEDNN_MAX_CPU_ISA``).
    """
    image = torch.ones(1, _CHANNELS, 4, 4)
    (found,) = opened(_convolution_of_ones()).tensors(image).values()
    return float(found.min()) < 0.9 * _CHANNELS


def _convolution_of_ones() -> bytes:
    constants = {
        **{"image scale": np.float32(1 / 255), "weight scale": np.float32(1 / 127), "scale": np.float32(0.5)},
        **{"zero": np.uint8(0), "weight zero": np.int8(0)},
        "weight": np.full((_CHANNELS, _CHANNELS, 1, 1), 127, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "image scale", "zero"], ["image integers"]),
        helper.make_node("DequantizeLinear", ["image integers", "image scale", "zero"], ["rounded image"]),
        helper.make_node("DequantizeLinear", ["weight", "weight scale", "weight zero"], ["rounded weight"]),
        helper.make_node("Conv", ["rounded image", "rounded weight"], ["sums"]),
        helper.make_node("QuantizeLinear", ["sums", "scale", "zero"], ["integers"]),
        helper.make_node("DequantizeLinear", ["integers", "scale", "zero"], ["rounded sums"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", _CHANNELS, 4, 4])
        for name in ("image", "rounded sums")
    ]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "product of 8 bits", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())
