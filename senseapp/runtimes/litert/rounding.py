"""Weights in int8 and biases of LiteRT files, fitted to images in place of what LiteRT's quantizer rounds to.

A file holds the integers and the scale of each output channel, so any of them can be stored in a file that the
quantizer has written. They are found by the code that finds them for ONNX
(:func:`~senseapp.runtimes.onnxruntime.rounding.weights.rounded_products`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ai_edge_litert import schema_py_generated as schema
from torch import Tensor

from senseapp.runtimes.litert.file import LiteRtGraph
from senseapp.runtimes.litert.model import called, interpreter_of, scaled
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode
from senseapp.runtimes.onnxruntime.rounding.ranges import AT_ONCE
from senseapp.runtimes.onnxruntime.rounding.weights import RoundedProduct
from senseapp.runtimes.open_file import Array

_WEIGHT_AXES = {"CONV_2D": (0, 3, 1, 2), "DEPTHWISE_CONV_2D": (3, 0, 1, 2)}
"""Of (O, C, H, W): LiteRT has (O, H, W, C), and (1, H, W, O) where each channel has a kernel."""
_STORED = (schema.TensorType.INT8, schema.TensorType.INT4)


class LiteRtProduct(WeightedNode):
    """An operator with weights: its tensors lie as in ONNX, (O, C, H, W), what it reads as in LiteRT, (N, H, W, C)."""

    def rows(self, values: Tensor, positions: int, generator: torch.Generator) -> Tensor:
        """Return the inputs of the product at up to ``positions`` random positions of ``values``: (G, S, K)."""
        read = values.movedim(-1, 1) if self.kind == "Conv" else values.reshape(-1, self.values.shape[1])
        return super().rows(read, positions, generator)


def products(content: bytes) -> list[WeightedNode]:
    """Return the operators of a float file whose weight is a constant of their own, in order."""
    graph = LiteRtGraph(content)
    used = Counter(int(place) for each in graph.operators for place in each.inputs)
    found = list[WeightedNode]()
    for each in graph.operators:
        kind = graph.kind(each)
        if kind not in (*_WEIGHT_AXES, "FULLY_CONNECTED") or used[int(each.inputs[1])] > 1:
            continue
        read, weight = (graph.tensors[place] for place in each.inputs[:2])
        bias: Any = graph.tensors[each.inputs[2]] if len(each.inputs) > 2 and each.inputs[2] >= 0 else None
        values, offsets = graph.constant(weight), None if bias is None else graph.constant(bias)
        if values is None:
            continue
        found.append(
            LiteRtProduct(
                node=graph.name(each.outputs[0]),
                kind="Conv" if kind in _WEIGHT_AXES else "Gemm",
                input=read.name.decode(),
                weight=weight.name.decode(),
                bias=None if offsets is None else bias.name.decode(),
                values=torch.from_numpy(_as_in_onnx(values, kind)),
                offsets=None if offsets is None else torch.from_numpy(offsets),
                _attributes=_attributes(kind, each.builtinOptions, read.shape, weight.shape),
            )
        )
    return found


def _as_in_onnx(weight: Array, kind: str, *, back: bool = False) -> Array:
    """Return a weight of LiteRT as (O, C, H, W), or one of ONNX as in LiteRT if ``back``."""
    axes = _WEIGHT_AXES.get(kind, range(weight.ndim))
    return np.ascontiguousarray(weight.transpose(np.argsort(axes) if back else axes))


def _attributes(kind: str, options: Any, read: Sequence[int], weight: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of a product as ONNX calls them; padding is counted where LiteRT says SAME."""
    if kind not in _WEIGHT_AXES:
        return {"transB": 1}
    strides = [int(options.strideH), int(options.strideW)]
    dilations = [int(options.dilationHFactor), int(options.dilationWFactor)]
    before, after = [0, 0], [0, 0]
    if options.padding == schema.Padding.SAME:
        for axis in range(2):
            size, reach = int(read[1 + axis]), dilations[axis] * (int(weight[1 + axis]) - 1) + 1
            total = max(0, (-(-size // strides[axis]) - 1) * strides[axis] + reach - size)
            before[axis], after[axis] = total // 2, total - total // 2
    group = int(read[3]) // int(weight[3]) if kind == "CONV_2D" else int(read[3])
    return {"strides": strides, "dilations": dilations, "pads": before + after, "group": group}


def tensors_of(network: bytes, batches: Sequence[Tensor], wanted: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Yield what tensors of a file are on a few images after the other; those in integers are scaled to float32."""
    interpreter = interpreter_of(network, 1, all_tensors=True)
    details = {each["name"]: each for each in interpreter.get_tensor_details() if each["name"] in set(wanted)}
    for part in torch.split(torch.cat(list(batches)), AT_ONCE):
        found = dict[str, list[Tensor]]()
        for image in part:
            called(interpreter, image[None].cpu().numpy())
            for name, each in details.items():
                values = scaled(interpreter.get_tensor(each["index"]), each)
                found.setdefault(name, []).append(torch.from_numpy(np.atleast_1d(values)))
        yield {name: torch.cat(values) for name, values in found.items()}


def with_products(content: bytes, rounded: Mapping[str, RoundedProduct]) -> bytes:
    """Return a file with these weights and biases, by the name of an operator, where its weight is in int8."""
    graph = LiteRtGraph(content)
    makers = {int(place): each for each in graph.operators for place in each.outputs}
    shared = Counter(each.buffer for each in graph.tensors)

    def store(tensor: Any, values: Array, scale: Array | None) -> None:
        if shared[tensor.buffer] > 1:
            shared[tensor.buffer] -= 1
            tensor.buffer = len(graph.model.buffers)
            graph.model.buffers.append(schema.BufferT())
        graph.model.buffers[tensor.buffer].data = np.frombuffer(values.tobytes(), np.uint8)
        if scale is not None:
            tensor.quantization.scale = scale.astype(np.float32)

    for name, each in graph.by_name().items():
        found = rounded.get(name)
        if found is None:
            continue
        read, weight = graph.tensors[each.inputs[0]], graph.tensors[each.inputs[1]]
        if int(each.inputs[1]) in makers:  # computed in float: integers are scaled before it
            weight = graph.tensors[makers[int(each.inputs[1])].inputs[0]]
        if weight.type not in _STORED or len(weight.quantization.scale) != len(found.scale):
            continue
        integers = _as_in_onnx(found.integers, graph.kind(each), back=True)
        store(weight, integers if weight.type == schema.TensorType.INT8 else _in_4_bits(integers), found.scale)
        if found.bias is None:
            continue
        bias = graph.tensors[each.inputs[2]]
        if bias.type == schema.TensorType.FLOAT32:
            store(bias, np.asarray(found.float_bias, np.float32), None)
        else:
            wide = bias.type == schema.TensorType.INT64  # of an input in 16 bits, which hardly rounds it
            wanted = np.asarray(found.float_bias if wide else found.bias)
            scale = np.float64(read.quantization.scale[0]) * found.scale
            store(bias, np.round(wanted / scale).astype(np.int64 if wide else np.int32), scale)
    return graph.content()


def _in_4_bits(integers: Array) -> Array:
    """Return integers in pairs, the first of each in the lower half of a byte."""
    pairs = np.pad(integers.ravel(), (0, integers.size % 2)).view(np.uint8).reshape(-1, 2) & 15
    return pairs[:, 0] | pairs[:, 1] << 4
