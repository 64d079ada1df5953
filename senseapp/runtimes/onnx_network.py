"""An ONNX file that is open in a runtime: the common part of all runtimes of ONNX files."""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from senseapp.networks.network import nested


class OnnxSession(ABC):
    """An open ONNX file with one input, and outputs that ONNX has flattened.

    Attributes:
        nesting: how the outputs were nested in the network (:func:`~senseapp.networks.network.nesting_text`); None for
            one tensor alone.
    """

    nesting: str | None

    @property
    @abstractmethod
    def fixed_batch(self) -> int | None:
        """Images that each call must have; None for any number."""

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


_PRODUCTS_OF_8_BITS = ("avx512_vnni", "avx_vnni", "amx_int8")


def saturates() -> bool:
    """Return whether sums of products of 8 bits saturate on this processor.

    Kernels of onnxruntime and OpenVINO for AVX2 or AVX-512 without VNNI add two products in 16 bits, ``VPMADDUBSW``.
    """
    found = torch.cpu.get_capabilities()
    return found.get("architecture") == "x86_64" and not any(found.get(each) for each in _PRODUCTS_OF_8_BITS)


def processor() -> str:
    """Return the processor, and whether it has dot products of 8 bits: ``AMD EPYC without VNNI``."""
    name = torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine()
    return f"{name} {'without' if saturates() else 'with'} VNNI"
