"""Channels of activations scaled to equal ranges, and the weights around them inversely: the same network in float.

An int8 file has one scale for a whole tensor of activations, so a channel of small values is held in few steps. Where
all that makes and reads the tensor is linear in each channel, the weights that make a channel can be multiplied by a
factor of its own, and those that read it divided by it (Nagel et al. 2019, "Data-free quantization through weight
equalization and bias correction", section 4.1, on weights; on ranges of activations, Xiao et al. 2023, "SmoothQuant",
equation 4 with α = ½).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import NodeProto, numpy_helper
from torch import Tensor

from senseapp.compressions.quantization.equalisation import MOST_RATIO
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.partly_int8 import FUSED
from senseapp.runtimes.onnxruntime.rounding.calibration import tensors_of
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode, products

_BY_CHANNEL = (
    *("Add", "Relu", "Identity", "MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean"),
    *("Reshape", "Flatten"),
)
"""What may make a channel, multiplied by a factor above 0, of channels multiplied by the same.

What clips from above does not. Where room was left for values twice those of the calibration, files of
EfficientNet-Lite 0 and 1 did 3 to 8 times the damage on other photographs."""
_LEAST_GAIN = 0.15  # of the damage: less may be chance, and changes weights for nothing


def better_equalised(
    network: bytes,
    batches: Sequence[Tensor],
    *,
    damage_of: Callable[[bytes], float],
    progress: Callable[[str], None] = lambda _sentence: None,
    has_time: Callable[[], bool] = lambda: True,
) -> bytes:
    """Return ``network``, equalised as it does least harm in int8, or as it is where that gains little.

    What is tried without ``has_time`` is left out.

    ``damage_of`` judges the files of onnxruntime's own quantizer, without saturation and on other images.
    """

    def damage(candidate: bytes) -> float:
        progress("Trying equalised channels")
        with Int8Writer(candidate, batches) as writer:
            return damage_of(writer.write())

    if not has_time():
        return network
    before = damage(network)
    best, least = network, before * (1 - _LEAST_GAIN)
    groups, seen = _groups_seen(network, batches)
    for with_weights in (False, True):
        if not has_time():
            break
        candidate = _equalised(network, groups, seen, with_weights=with_weights)
        if candidate != network and (harm := damage(candidate)) < least:
            best, least = candidate, harm
    return best


def equalised(network: bytes, batches: Sequence[Tensor], *, with_weights: bool) -> bytes:
    """Return ``network`` with equalised channels wherever it stays the same in float.

    A channel whose largest absolute value is r, read by weights up to w, is multiplied by 1 / √r or, ``with_weights``,
    by √(w / r), so that both come to √(w r); by 1 / r where only depthwise convolutions read it, whose weights have a
    scale for each channel; and all by what leaves the range of the tensor on ``batches`` as it is.
    """
    return _equalised(network, *_groups_seen(network, batches), with_weights=with_weights)


def _groups_seen(network: bytes, batches: Sequence[Tensor]) -> tuple[list[_Group], dict[str, _Seen]]:
    """Return the groups of tensors of ``network``, and what their tensors are on ``batches``."""
    groups = _ChannelGraph(onnx.load_from_string(network)).groups()
    return groups, _seen(network, batches, [name for group in groups for name in group.tensors])


def _equalised(network: bytes, groups: Sequence[_Group], seen: Mapping[str, _Seen], *, with_weights: bool) -> bytes:
    model = onnx.load_from_string(network)
    factors: dict[str, Tensor] = {}
    for group in groups:
        if (found := group.factors(seen, with_weights=with_weights)) is not None:
            factors |= dict.fromkeys(group.tensors, found)
    _ChannelGraph(model).scale(factors)
    return bytes(model.SerializeToString())


@dataclass
class _Group:
    """Tensors whose channels have the same factors, since activations, poolings and additions link them.

    Attributes:
        rounded: those that an int8 file rounds: what only an activation reads, it computes with what makes it.
        readers: the nodes whose weights read them.
        convolved: those that a convolution makes or reads, whose channels are axis 1.
        multiplied: those that a matrix product or a norm makes or reads, whose channels are the last axis.
    """

    tensors: list[str] = field(default_factory=list)
    rounded: list[str] = field(default_factory=list)
    readers: list[WeightedNode] = field(default_factory=list)
    convolved: list[str] = field(default_factory=list)
    multiplied: list[str] = field(default_factory=list)

    def factors(self, seen: Mapping[str, _Seen], *, with_weights: bool) -> Tensor | None:
        """Return the factor of each channel, (C,).

        None where the tensors differ in channels, are not finite or 0, or are read by weights of 0 only.
        """
        if self.convolved and any(seen[name].dims != 2 for name in self.multiplied):
            return None  # axes differ
        largest = {name: seen[name].by_channel if self.convolved else seen[name].by_last for name in self.tensors}
        if len({(seen[name].images, len(each)) for name, each in largest.items()}) > 1:
            return None
        if (ranges := _relative(torch.stack([largest[name] for name in self.rounded]).amax(0))) is None:
            return None
        factors = 1 / ranges
        if read := [_largest_weights(each) for each in self.readers if not each.depthwise]:
            if (weights := _relative(torch.stack(read).amax(0))) is None:
                return None  # nothing is read of them
            factors = (weights * factors if with_weights else factors).sqrt()
        return factors / (factors * ranges).max()


class _ChannelGraph:
    """Which tensors of a network can be scaled channel by channel, and the constants that do it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._constants = {each.name: each for each in model.graph.initializer}
        self._products = {each.node: each for each in products(model)}
        self._uses: dict[str, int] = {}
        for node in model.graph.node:
            for name in node.input:
                self._uses[name] = self._uses.get(name, 0) + 1

    def groups(self) -> list[_Group]:
        """Return the groups of tensors that only what is linear in each channel makes and reads."""
        leaders: dict[str, str] = {}

        def leader(name: str) -> str:
            while leaders.setdefault(name, name) != name:
                name = leaders[name]
            return name

        fixed = {each.name for each in (*self._graph.input, *self._graph.output)}
        convolved, multiplied = set[str](), set[str]()
        read = dict[str, list[WeightedNode]]()
        for node in self._graph.node:
            linked = [name for name in (*node.input, *node.output) if name and name not in self._constants]
            if (product := self._products.get(node.name)) is not None:
                read.setdefault(product.input, []).append(product)
                (convolved if product.kind == "Conv" else multiplied).update((product.input, node.output[0]))
            elif self._is_scaled_norm(node):
                multiplied.add(node.output[0])
                fixed.update(node.input)
            elif self._is_by_channel(node):
                for name in linked[1:]:
                    leaders[leader(name)] = leader(linked[0])
            else:
                fixed.update(linked)
        inside = self._inside()
        groups: dict[str, _Group] = {}
        for name in dict.fromkeys((*leaders, *convolved, *multiplied)):
            group = groups.setdefault(leader(name), _Group())
            group.tensors.append(name)
            group.rounded += [] if name in inside else [name]
            group.readers += read.get(name, [])
            group.convolved += [name] if name in convolved else []
            group.multiplied += [name] if name in multiplied else []
        return [group for group in groups.values() if fixed.isdisjoint(group.tensors)]

    def _inside(self) -> set[str]:
        """Return the tensors that only an activation reads, which an int8 file computes with what makes them."""
        return {node.input[0] for node in self._graph.node if node.op_type in FUSED and self._uses[node.input[0]] == 1}

    def _is_by_channel(self, node: NodeProto) -> bool:
        """Return whether a node is linear in each channel, for factors above 0."""
        if node.op_type not in _BY_CHANNEL:
            return False
        constants = [self._constants[name] for name in node.input if name in self._constants]
        if node.op_type == "ReduceMean":
            return not any(set(numpy_helper.to_array(each).tolist()) & {0, 1} for each in constants)
        if node.op_type == "Reshape":
            return [numpy_helper.to_array(each).size for each in constants] == [2]
        return node.op_type != "Add" or not constants

    def _is_scaled_norm(self, node: NodeProto) -> bool:
        own = node.input[1:]
        axes = [each.i for each in node.attribute if each.name == "axis"]
        constant = all(name in self._constants and self._uses[name] == 1 for name in own)
        return node.op_type == "LayerNormalization" and axes in ([], [-1]) and bool(own) and constant

    def scale(self, factors: Mapping[str, Tensor]) -> None:
        """Multiply the channels of each tensor by its factors, in the constants of what makes and reads it."""
        for node in self._graph.node:
            factor = factors.get(node.output[0])
            if (product := self._products.get(node.name)) is not None:
                self._set(product.weight, _scaled(product, factors.get(product.input), factor))
                if product.bias is not None and product.offsets is not None and factor is not None:
                    self._set(product.bias, product.offsets * factor)
            elif factor is not None and self._is_scaled_norm(node):
                for name in node.input[1:]:
                    self._set(name, torch.from_numpy(np.array(numpy_helper.to_array(self._constants[name]))) * factor)

    def _set(self, name: str, value: Tensor) -> None:
        array: NDArray[np.float32] = value.float().numpy()
        self._constants[name].CopyFrom(numpy_helper.from_array(array, name))


def _scaled(product: WeightedNode, input_factor: Tensor | None, output_factor: Tensor | None) -> Tensor:
    """Return the weight of ``product`` for an input and an output whose channels are multiplied by these factors."""
    weight = product.matrix(product.values)  # (G, O/G, K), where channels change fastest
    if input_factor is not None:
        inputs = input_factor.view(product.groups, 1, 1, -1)
        weight = (_by_input(product) / inputs).view_as(weight)
    if output_factor is not None:
        weight = weight * output_factor.view(product.groups, -1, 1)
    return product.tensor(weight)


def _by_input(product: WeightedNode) -> Tensor:
    """Return the weight as (G, O/G, positions of a kernel, inputs of a group)."""
    weight = product.matrix(product.values)
    inputs = product.values.shape[1] if product.kind == "Conv" else weight.shape[2]
    return weight.view(*weight.shape[:2], -1, inputs)


def _relative(sizes: Tensor) -> Tensor | None:
    """Return the largest absolute values ``sizes`` (C,), to the largest; None where all are 0 or one is not finite."""
    most = sizes.max()
    if not torch.isfinite(most) or most <= 0:
        return None
    return (sizes / most).clamp_min(1 / MOST_RATIO)


def _largest_weights(product: WeightedNode) -> Tensor:
    """Return the largest absolute value of the weights that read each input channel, (C,)."""
    return _by_input(product).abs().amax((1, 2)).flatten()


@dataclass(frozen=True, slots=True)
class _Seen:
    """The axes of a tensor, the length of its first, and the largest absolute value by its second and its last."""

    dims: int
    images: int
    by_channel: Tensor
    by_last: Tensor


def _seen(network: bytes, batches: Sequence[Tensor], tensors: Sequence[str]) -> dict[str, _Seen]:
    """Return what ``tensors`` of ``network`` are on ``batches``."""
    found: dict[str, _Seen] = {}
    for values in tensors_of(network, batches, tensors):
        for name, output in values.items():
            size = output.abs()
            first, last = size.movedim(1, 0).flatten(1).amax(1), size.flatten(0, -2).amax(0)
            if (known := found.get(name)) is not None:
                first, last = first.maximum(known.by_channel), last.maximum(known.by_last)
            found[name] = _Seen(output.dim(), len(output), first, last)
    return found
