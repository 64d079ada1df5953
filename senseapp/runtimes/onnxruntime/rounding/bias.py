"""Biases of a QDQ file by which convolutions and matrix products keep the means that they have in float.

Source: Nagel et al. 2019, "Data-free quantization through weight equalization and bias correction", appendix D
(empirical bias correction). What is rounded and clipped before a product moves its mean, further with each layer, so
the shift of each product is measured behind products without one.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.networks.onnx.operators.in_runtime import open_session
from senseapp.runtimes.onnxruntime.rounding.ranges import AT_ONCE, tensors_of
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel

_BIASED = ("Conv", "Gemm")
_IMAGES = 24  # more of them gained nothing (EfficientNet-Lite0 and 1)
_AXES_OPSET = 18  # from which axes are an input of ReduceMean

Array = NDArray[Any]


class BiasCorrection:
    """Corrects biases of int8 files of ``network``, a float ONNX file, on some images of ``batches``, (N, C, H, W)."""

    def __init__(self, network: bytes, batches: Sequence[Tensor]) -> None:
        self._network, self._batches = network, batches
        self._outputs = {node.name: node.output[0] for node in OnnxGraph(network).nodes if node.op_type in _BIASED}

    def corrected(self, file: bytes) -> bytes:
        """Return a QDQ ``file`` whose biases keep the means of products; those that have no bias stay as they are."""
        graph = OnnxGraph(file)
        nodes = [node for node in graph.nodes if node.name in self._outputs and _bias(graph, node) is not None]
        shifts = self._shifts(file, [node.name for node in nodes]) if nodes else ()
        for node, shift in zip(nodes, shifts, strict=True):
            _add_to_bias(graph, node, -shift)
        return graph.content()

    @cached_property
    def _in_float(self) -> list[tuple[Array, dict[str, Array]]]:
        """The input of each call, and by product the mean of each channel in each image, (N, O, 1, …)."""
        opened = RuntimeModel(self._network)
        size = opened.fixed_batch or AT_ONCE
        parts = torch.split(torch.cat(list(self._batches))[: max(size, _IMAGES // size * size)], size)
        values = tensors_of(self._network, parts, list(self._outputs.values()))
        return [
            (opened.as_input(part), {node: _means(each[output]) for node, output in self._outputs.items()})
            for part, each in zip(parts, values, strict=True)
        ]

    def _shifts(self, file: bytes, names: Sequence[str]) -> Iterable[Array]:
        """Return how far each channel's mean, (O,), lies from that in float, behind corrected products."""
        graph, made = OnnxGraph(file), list[NodeProto]()
        for node in graph.nodes:
            made.append(node)
            if node.name not in names:
                continue
            output, shift = node.output[0], f"{node.name}.shift"
            node.output[0] = before = f"{output}.before"
            wanted, mean, common = (f"{shift}.{each}" for each in ("wanted", "mean", "common"))
            kind = "GlobalAveragePool" if node.op_type == "Conv" else "Identity"
            axes: dict[str, Any] = {"axes": [0]} if graph.opset < _AXES_OPSET else {}
            read = [shift] if axes else [shift, f"{shift}.axes"]
            graph.store(f"{shift}.axes", np.zeros(1, np.int64))
            graph.model.graph.input.append(helper.make_tensor_value_info(wanted, TensorProto.FLOAT, None))
            made += [
                helper.make_node(kind, [before], [mean]),
                helper.make_node("Sub", [mean, wanted], [shift]),
                helper.make_node("ReduceMean", read, [common], **axes),
                helper.make_node("Sub", [before, common], [output]),
            ]
        graph.nodes = made
        taken, *_ = graph.inputs
        graph.return_values([f"{name}.shift" for name in names])
        graph.prune()
        opened = open_session(graph.content(), fused=False)
        found = [
            opened.run(None, {taken: images, **{f"{name}.shift.wanted": means[name] for name in names}})
            for images, means in self._in_float
        ]
        return (np.concatenate(each).mean(0).ravel() for each in zip(*found, strict=True))


def _means(values: Tensor) -> Array:
    return values.mean(tuple(range(2, values.dim())), keepdim=True).numpy() if values.dim() > 2 else values.numpy()


def _bias(graph: OnnxGraph, node: NodeProto) -> tuple[str, Array | None] | None:
    """Return the stored bias of a node, and its scale where it is in integers; None where other nodes read it too."""
    name, scale = node.input[2] if len(node.input) > 2 else "", None
    maker = graph.maker(name)
    if maker is not None and maker.op_type == "DequantizeLinear" and graph.is_read_once(name):
        name, scale = maker.input[0], graph.array(maker.input[1])
    return (name, scale) if name in graph.initializers and graph.is_read_once(name) else None


def _add_to_bias(graph: OnnxGraph, node: NodeProto, added: Array) -> None:
    found = _bias(graph, node)
    assert found is not None
    name, scale = found
    before = numpy_helper.to_array(graph.initializers[name])
    if scale is None:
        after = before + added
    else:
        limits = np.iinfo(before.dtype)
        after = (before + (added / scale).round()).clip(limits.min, limits.max)
    graph.store(name, after.astype(before.dtype))
