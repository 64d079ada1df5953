"""Biases of a QDQ file by which convolutions and matrix products keep the means that they have in float.

Source: Nagel et al. 2019, "Data-free quantization through weight equalization and bias correction", appendix D
(empirical bias correction). What is rounded and clipped before a product moves its mean, further with each layer, so
products are corrected in order, each behind those that are corrected already.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from senseapp.networks.onnx.graph import OnnxGraph, read_by
from senseapp.runtimes.onnxruntime.rounding.ranges import AT_ONCE, tensors_of
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel, session

_BIASED = ("Conv", "Gemm")
_BIAS = 2  # its place among the inputs
_IMAGES = (8, 24)  # fewest and most; more of them gained nothing (EfficientNet-Lite0 and 1)

Array = NDArray[Any]


class BiasCorrection:
    """Corrects biases of int8 files of ``network``, a float ONNX file, on some images of ``batches``, (N, C, H, W)."""

    def __init__(self, network: bytes, batches: Sequence[Tensor]) -> None:
        self._network, self._batches = network, batches
        nodes = OnnxGraph(network).nodes
        self._outputs = {node.name: node.output[0] for node in nodes if node.op_type in _BIASED}

    def corrected(self, file: bytes) -> bytes:
        """Return a QDQ ``file`` whose biases keep the means of products; those that have no bias stay as they are.

        Means over few images vary by chance, which :func:`shrunk` takes off.
        """
        graph = OnnxGraph(file)
        inputs, means = self._in_float
        stepwise = StepwiseNetwork(graph, inputs)
        for bias in _biases(graph):
            if bias.node.name in self._outputs:
                output, wanted = bias.node.output[0], means[bias.node.name]
                values = [torch.from_numpy(each) for each in stepwise.values(output)]
                added = bias.add(-shrunk(torch.cat([_means(each) for each in values]) - wanted).numpy())
                stepwise.add(output, added.reshape(-1, *[1] * (values[0].dim() - 2)))
        return graph.content()

    @cached_property
    def _in_float(self) -> tuple[list[NDArray[np.float32]], dict[str, Tensor]]:
        """Inputs of calls, and by product the mean of each channel in each image, (N, O)."""
        opened = RuntimeModel(self._network)
        parts = [part for batch in self._batches for part in torch.split(batch, opened.fixed_batch or AT_ONCE)]
        inputs, found = [], defaultdict[str, list[Tensor]](list)
        images, most = 0, _IMAGES[0]
        for part, values in zip(parts, tensors_of(self._network, parts, list(self._outputs.values())), strict=True):
            inputs.append(opened.as_input(part))
            for node, output in self._outputs.items():
                found[node].append(_means(values[output]))
            images += len(part)
            # of the outputs of products, for all images together: bounds time and memory
            most = min(max(most, len(part) * 2**27 // sum(map(Tensor.numel, values.values()))), _IMAGES[1])
            if images >= most:
                break
        return inputs, {node: torch.cat(each) for node, each in found.items()}


def shrunk(differences: Tensor) -> Tensor:
    """Return the mean (C,) of ``differences`` (N, C), shrunk by what chance is expected to add to it.

    That is the estimate of James and Stein (1961), "Estimation with quadratic loss", section 2, for a variance that is
    itself estimated, here of all channels together; not below 0. Fewer than three channels are not shrunk; of one
    image, where the variance is unknown, the result is 0.
    """
    images, channels = differences.shape
    mean, freedom = differences.mean(0), channels * (images - 1)
    if not freedom:
        return torch.zeros_like(mean)
    chance, square = float(differences.var(0).sum()) / images, float(mean.square().sum())
    chance *= max(0, channels - 2) / channels * freedom / (freedom + 2)
    return mean * (max(0.0, 1 - chance / square) if square > 0 else 0.0)


def _means(values: Tensor) -> Tensor:
    """Return the mean of each channel: of (N, C, …) over positions; of (N, C) itself."""
    return values.float().flatten(2).mean(2) if values.dim() > 2 else values.float()


@dataclass(frozen=True, slots=True)
class _Bias:
    """The bias of a node, which nothing else reads, in float or in integers with a scale."""

    node: NodeProto
    constant: TensorProto
    scale: NDArray[np.float32] | None

    def add(self, wanted: NDArray[np.float32]) -> NDArray[np.float32]:
        """Add to the bias, and return what that came to in its numbers."""
        before = numpy_helper.to_array(self.constant)
        if self.scale is None:
            after = (before + wanted).astype(before.dtype)
            added = after - before
        else:
            limits = np.iinfo(before.dtype)
            after = (before + (wanted / self.scale).round()).clip(limits.min, limits.max).astype(before.dtype)
            added = (after.astype(np.float64) - before) * self.scale
        self.constant.CopyFrom(numpy_helper.from_array(after, self.constant.name))
        return np.asarray(added, np.float32)


def _biases(graph: OnnxGraph) -> Iterator[_Bias]:
    for node in graph.nodes:
        name = node.input[_BIAS] if node.op_type in _BIASED and len(node.input) > _BIAS else ""
        scale, maker = None, graph.maker(name)
        if maker is not None and maker.op_type == "DequantizeLinear" and graph.is_read_once(name):
            name, scale = maker.input[0], graph.array(maker.input[1])
        if name in graph.initializers and graph.is_read_once(name):
            yield _Bias(node, graph.initializers[name], scale)


class StepwiseNetwork:
    """Computes tensors of a network with one input, each once; they may be changed before others are made of them.

    QDQ pairs are computed in float as they stand. Each of ``inputs`` is what the network takes for a few images.
    Tensors are held while nodes are left that read them.
    """

    def __init__(self, network: OnnxGraph, inputs: Sequence[Array]) -> None:
        (taken,) = network.inputs
        self._graph, self._left = network, list(network.nodes)
        self._readers = Counter(name for node in network.nodes for name in read_by(node))
        self._held: list[dict[str, Array]] = [{taken: each} for each in inputs]

    def values(self, tensor: str) -> list[Array]:
        """Return ``tensor`` for each of the inputs; raises KeyError for one that is no longer held."""
        if tensor not in self._held[0]:
            self._compute(tensor)
        return [held[tensor] for held in self._held]

    def add(self, tensor: str, values: Array) -> None:
        """Add ``values``, which broadcast, to what tensors that are computed from now on are made of."""
        for held in self._held:
            held[tensor] = held[tensor] + values

    def _compute(self, tensor: str) -> None:
        nodes, self._left = self._split(tensor)
        for node in nodes:
            self._readers.subtract(read_by(node))
        made = [name for node in nodes for name in node.output if name == tensor or self._readers[name] > 0]
        read = sorted(set().union(*map(read_by, nodes)))
        taken = [name for name in read if name in self._held[0]]
        step = self._session(nodes, taken, made)
        for held in self._held:
            found = step.run(made, {name: held[name] for name in taken})
            held.update(zip(made, found, strict=True))
            for name in [each for each in held if each != tensor and self._readers[each] <= 0]:
                del held[name]

    def _split(self, tensor: str) -> tuple[list[NodeProto], list[NodeProto]]:
        """Return the nodes that ``tensor`` is still to be computed by, and the others; in order."""
        wanted, nodes, others = {tensor}, list[NodeProto](), list[NodeProto]()
        for node in reversed(self._left):
            needed = not wanted.isdisjoint(node.output)
            (nodes if needed else others).append(node)
            wanted.update(read_by(node) if needed else ())
        return nodes[::-1], others[::-1]

    def _session(self, nodes: list[NodeProto], taken: Sequence[str], made: Sequence[str]) -> Any:
        step = self._graph.part(())
        step.nodes, step.initializers = nodes, dict(self._graph.initializers)
        kinds = {name: helper.np_dtype_to_tensor_dtype(self._held[0][name].dtype) for name in taken}
        step.model.graph.input.extend(helper.make_tensor_value_info(name, kinds[name], None) for name in taken)
        step.return_values(made)
        step.prune()
        return session(step.content(), threads=None, fused=False)
