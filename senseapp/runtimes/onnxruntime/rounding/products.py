"""Nodes of an ONNX network that multiply with weights: as matrices, in the order in which the runtime multiplies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor
from torch.nn import functional

from senseapp.networks.onnx.graph import OnnxGraph, attributes_of

KINDS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedNode:
    """A node whose output is rows of inputs times a constant matrix.

    It is of a ``kind`` in :data:`KINDS`. ``input``, ``weight`` and ``bias`` are names of its tensors; ``values`` are
    those of the weight, as the network holds it, ``offsets`` those of the bias, (O,).
    """

    node: str
    kind: str
    input: str
    weight: str
    bias: str | None
    values: Tensor
    offsets: Tensor | None
    _attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> int:
        """The number of matrices: more than one for a grouped convolution."""
        return int(self._attributes.get("group", 1)) if self.kind == "Conv" else 1

    @property
    def depthwise(self) -> bool:
        """Whether each output channel reads one input channel, as a kernel of its own does in onnxruntime."""
        return self.kind == "Conv" and self.values.shape[1] == 1 and self.groups == self.values.shape[0] > 1

    @property
    def order_varies(self) -> bool:
        """Whether runtimes differ in which weights are multiplied side by side, as a kernel's channels are odd."""
        return self.kind == "Conv" and self.values.shape[1] % 2 == 1 and not self.depthwise

    @property
    def channel_axis(self) -> int:
        """Axis of output channels: the second of a matrix that is not turned."""
        return 0 if (self.kind == "Conv" or (self.kind == "Gemm" and self._attributes.get("transB", 0))) else 1

    def matrix(self, weight: Tensor) -> Tensor:
        """Return ``weight``, as the network holds it, as (G, O/G, K); of kernels, channels change fastest."""
        if self.kind == "Conv":
            return weight.movedim(1, -1).reshape(self.groups, weight.shape[0] // self.groups, -1)
        return (weight if self.channel_axis == 0 else weight.T)[None]

    def tensor(self, matrix: Tensor) -> Tensor:
        """Undo :meth:`matrix`."""
        if self.kind == "Conv":
            outputs, inputs, *kernel = self.values.shape
            return matrix.reshape(outputs, *kernel, inputs).movedim(-1, 1).contiguous()
        return (matrix[0] if self.channel_axis == 0 else matrix[0].T).contiguous()

    def rows(self, values: Tensor, positions: int, generator: torch.Generator) -> Tensor:
        """Return the inputs of the product at up to ``positions`` random positions of ``values``: (G, S, K)."""
        if self.kind != "Conv":
            flat = values.reshape(-1, values.shape[-1])
            return flat[torch.randperm(len(flat), generator=generator)[:positions]][None]
        kernel, spatial = self.values.shape[2:], self.values.dim() - 2
        strides = self._attributes.get("strides", [1] * spatial)
        dilations = self._attributes.get("dilations", [1] * spatial)
        pads = self._attributes.get("pads", [0] * 2 * spatial)
        sides = [side for axis in reversed(range(spatial)) for side in (pads[axis], pads[spatial + axis])]
        windows = functional.pad(values, sides)  # (N, C, H, W)
        for axis in range(spatial):
            windows = windows.unfold(2 + axis, dilations[axis] * (kernel[axis] - 1) + 1, strides[axis])
        taps: tuple[Any, ...] = (..., *(slice(None, None, step) for step in dilations))
        windows = windows[taps].movedim(1, -1)  # (N, H, W, k, k, C)
        places = windows.shape[: 1 + spatial]
        chosen = torch.randperm(math.prod(places), generator=generator)[:positions]
        picked = windows[torch.unravel_index(chosen, places)]  # (S, k, k, C)
        return picked.reshape(*picked.shape[:-1], self.groups, -1).movedim(-2, 0).flatten(2)


def products(network: OnnxGraph) -> list[WeightedNode]:
    """Return those nodes of ``network`` whose weight is a constant of their own, in order."""
    constants, found = network.initializers, list[WeightedNode]()
    for node in network.nodes:
        if node.op_type not in KINDS or node.input[1] not in constants or node.input[0] in constants:
            continue
        bias = node.input[2] if len(node.input) > 2 and node.input[2] in constants else None
        attributes = attributes_of(node)
        usual = attributes.get("alpha", 1) == attributes.get("beta", 1) == 1 and not attributes.get("transA", 0)
        usual = usual and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
        own = all(network.is_read_once(name) for name in (node.input[1], bias) if name)
        if not usual or not own or (node.op_type != "Conv" and len(constants[node.input[1]].dims) != 2):
            continue
        found.append(
            WeightedNode(
                node=node.name,
                kind=node.op_type,
                input=node.input[0],
                weight=node.input[1],
                bias=bias,
                values=_tensor(constants[node.input[1]]),
                offsets=_tensor(constants[bias]) if bias else None,
                _attributes=attributes,
            )
        )
    return found


def _tensor(constant: TensorProto) -> Tensor:
    return torch.from_numpy(np.array(numpy_helper.to_array(constant), dtype=np.float32))
