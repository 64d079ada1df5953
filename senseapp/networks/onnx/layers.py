"""Nodes with constant weights as torch's own modules: convolutions, linear layers, norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.networks.onnx.operators import Attributes
from senseapp.networks.onnx.operators.normalisation import by_channel
from senseapp.networks.onnx.operators.windows import Ends, Window, symmetric, transposed_ends
from senseapp.networks.onnx.torch_graph import Constant, Node
from senseapp.networks.profile import BATCH_NORMS

_CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_BATCH_NORMS: dict[int, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_POSITIONS = {"weight": 1, "bias": 2, "running_mean": 3, "running_var": 4}  # among the inputs of a node
_INSTANCE_NORMS: dict[int, Any] = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """One tensor of a layer: the constant ``name`` of the graph, perhaps with its two axes exchanged or repeated."""

    name: str
    transposed: bool = False
    repeated_to: int = 0

    def of(self, constants: Mapping[str, Constant]) -> Tensor:
        """Return the numbers, in memory of their own."""
        value = constants[self.name].value
        value = value.T if self.transposed else value.reshape(-1) if self.repeated_to else value
        return (by_channel(value, self.repeated_to) if self.repeated_to else value).detach().clone().contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Description of the module for a node: of ``kind`` with ``settings``, on tensors of the graph.

    Attributes:
        weight: its main tensor, by which it is known: all nodes that use that share one module.
        bias: None where the layer has none.
        buffers: other tensors, by attribute.
        data: the value that it is called on.
        pads, crop: what is added around its input, and cut from its output, where the module itself cannot.
        absorbs: the node after it, a sum with the bias, that is part of the layer.
        apart: where the node was found, for layers of vectors: files store equal vectors of several layers once.
    """

    kind: Callable[..., nn.Module]
    settings: Mapping[str, Any]
    weight: Tensors
    bias: Tensors | None = None
    buffers: tuple[tuple[str, Tensors], ...] = ()
    data: str
    pads: Ends = ()
    crop: Ends = ()
    absorbs: Node | None = None
    apart: str = ""

    @property
    def identity(self) -> object:
        """What two nodes must have in common to be calls of one module."""
        return (self.kind, tuple(self.settings.items()), self.weight, self.bias, self.buffers, self.apart)

    @property
    def tensors(self) -> dict[str, Tensors]:
        """The tensors by attribute of the module."""
        found = {"weight": self.weight, **dict(self.buffers)}
        return found if self.bias is None else {**found, "bias": self.bias}

    def places(self, node: Node) -> Iterator[tuple[str, Node, int]]:
        """Yield where each attribute is read where ``node`` is this layer: the node and the position of its input."""
        for attribute in self.tensors:
            if attribute == "bias" and self.absorbs is not None and self.bias is not None:
                yield attribute, self.absorbs, self.absorbs.inputs.index(self.bias.name)
            else:
                yield attribute, node, _POSITIONS[attribute]

    def module(self, constants: Mapping[str, Constant], parameters: dict[Tensors, nn.Parameter]) -> nn.Module:
        """Return the module with its numbers; matrices in ``parameters`` are shared with other layers."""
        with torch.device("meta"):
            module = self.kind(**self.settings)
        module.weight = _parameter(self.weight, constants, parameters)
        if self.bias is not None:
            module.bias = _parameter(self.bias, constants, parameters)
        for name, tensors in self.buffers:
            module.register_buffer(name, tensors.of(constants))
        if isinstance(module, BATCH_NORMS):
            module.num_batches_tracked = torch.zeros((), dtype=torch.int64)
        return module.eval()


def _parameter(
    tensors: Tensors, constants: Mapping[str, Constant], parameters: dict[Tensors, nn.Parameter]
) -> nn.Parameter:
    if constants[tensors.name].value.ndim < 2:  # equal vectors of different layers are stored once
        return nn.Parameter(tensors.of(constants))
    if tensors not in parameters:
        parameters[tensors] = nn.Parameter(tensors.of(constants))
    return parameters[tensors]


@dataclass(slots=True, kw_only=True)
class LayerFinder:
    """Finds the layers of a graph.

    Args:
        values: of every name, for their shapes.
        readers: how many nodes and outputs read a value.
        sums: the Add that reads a value, by the value.
    """

    constants: Mapping[str, Constant]
    values: Mapping[str, Tensor]
    readers: Mapping[str, int]
    sums: Mapping[str, Node]
    _kinds: dict[str, Callable[[Node], Layer | None]] = field(init=False)

    def __post_init__(self) -> None:
        self._kinds = {
            "Conv": self._convolution,
            "ConvTranspose": self._transposed,
            "Gemm": self._gemm,
            "MatMul": self._product,
            "BatchNormalization": self._batch_norm,
            "LayerNormalization": self._layer_norm,
            "GroupNormalization": self._group_norm,
            "InstanceNormalization": self._instance_norm,
        }

    def layer(self, node: Node) -> Layer | None:
        """Return what ``node`` becomes; None where its weights are computed, or torch has no such module."""
        if node.op not in self._kinds or not self._is_known(node.inputs[1]):
            return None
        if node.op not in ("Gemm", "MatMul") and not all(self._is_known(name) for name in node.inputs[2:] if name):
            return None
        found = self._kinds[node.op](node)
        if found is None or self.constants[found.weight.name].value.ndim > 1:
            return found
        return replace(found, apart=node.name if node.scope is None else node.scope)

    def _is_known(self, name: str) -> bool:
        return name in self.constants and self.constants[name].value.is_floating_point()

    def _bias(self, node: Node, position: int) -> Tensors | None:
        name = node.inputs[position] if len(node.inputs) > position else ""
        return None if not name or self._is_no_bias(name) else Tensors(name=name)

    def _is_no_bias(self, name: str) -> bool:
        """Return whether the graph computes zeros, as torch's newer exporter has it do for a layer without bias."""
        found = self.constants.get(name)
        return found is not None and not found.weight and not found.initializer and not found.value.any()

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def _convolution(self, node: Node) -> Layer:
        at, weight = Attributes.of(node), self._shape(node.inputs[1])
        window = Window.of(at, weight[2:])
        ends = window.ends(self._shape(node.inputs[0])[2:])
        padding = symmetric(ends)
        groups = at.whole("group", 1)
        settings = self._window_settings(window, weight[1] * groups, weight[0], groups)
        return Layer(
            kind=_CONVOLUTIONS[window.rank],
            settings=settings | {"padding": padding or (0,) * window.rank, "bias": self._bias(node, 2) is not None},
            weight=Tensors(name=node.inputs[1]),
            bias=self._bias(node, 2),
            data=node.inputs[0],
            pads=() if padding is not None else ends,
        )

    def _window_settings(self, window: Window, ins: int, outs: int, groups: int) -> dict[str, Any]:
        own = {"kernel_size": window.kernel, "stride": window.strides, "dilation": window.dilations}
        return {"in_channels": ins, "out_channels": outs, "groups": groups, **own}

    def _transposed(self, node: Node) -> Layer:
        at, weight = Attributes.of(node), self._shape(node.inputs[1])
        window = Window.of(at, weight[2:])
        ends = transposed_ends(at, window, self._shape(node.inputs[0])[2:])
        padding = symmetric(ends.cut)
        groups = at.whole("group", 1)
        return Layer(
            kind=_TRANSPOSED[window.rank],
            settings={
                **self._window_settings(window, weight[0], weight[1] * groups, groups),
                "padding": padding or (0,) * window.rank,
                "output_padding": ends.output_padding,
                "bias": self._bias(node, 2) is not None,
            },
            weight=Tensors(name=node.inputs[1]),
            bias=self._bias(node, 2),
            data=node.inputs[0],
            crop=() if padding is not None else ends.cut,
        )

    def _gemm(self, node: Node) -> Layer | None:
        at, shape = Attributes.of(node), self._shape(node.inputs[1])
        if at.number("alpha", 1) != 1 or at.number("beta", 1) != 1 or at.whole("transA", 0) or len(shape) != 2:
            return None
        as_stored = bool(at.whole("transB", 0))
        outs, ins = shape if as_stored else shape[::-1]
        bias = self._bias(node, 2)
        if bias is not None and not self._is_vector(bias.name, outs):
            return None
        return self._linear(node, ins, outs, as_stored=as_stored, bias=bias)

    def _is_vector(self, name: str, length: int) -> bool:
        shape = self._shape(name)
        return self._is_known(name) and shape[-1:] == (length,) and max(shape[:-1], default=1) == 1

    def _linear(
        self, node: Node, ins: int, outs: int, *, as_stored: bool, bias: Tensors | None, absorbs: Node | None = None
    ) -> Layer:
        return Layer(
            kind=nn.Linear,
            settings={"in_features": ins, "out_features": outs, "bias": bias is not None},
            weight=Tensors(name=node.inputs[1], transposed=not as_stored),
            bias=Tensors(name=bias.name, repeated_to=outs) if bias else None,
            data=node.inputs[0],
            absorbs=absorbs,
        )

    def _product(self, node: Node) -> Layer | None:
        shape = self._shape(node.inputs[1])
        if len(shape) != 2 or self.values[node.inputs[0]].ndim < 2:
            return None
        ins, outs = shape
        following = self.sums.get(node.outputs[0]) if self.readers[node.outputs[0]] == 1 else None
        if following is not None:
            name = next(each for each in following.inputs if each != node.outputs[0])
            fits = len(self._shape(name)) <= self.values[node.outputs[0]].ndim
            if fits and self._is_vector(name, outs):
                bias = Tensors(name=name)
                return self._linear(node, ins, outs, as_stored=False, bias=bias, absorbs=following)
        return self._linear(node, ins, outs, as_stored=False, bias=None)

    def _batch_norm(self, node: Node) -> Layer | None:
        at, rank = Attributes.of(node), self.values[node.inputs[0]].ndim
        if rank not in _BATCH_NORMS or at.whole("training_mode", 0):
            return None
        names = node.inputs[1:5]
        return Layer(
            kind=_BATCH_NORMS[rank],
            settings={"num_features": self._shape(names[0])[0], "eps": at.number("epsilon", 1e-5)},
            weight=Tensors(name=names[0]),
            bias=Tensors(name=names[1]),
            buffers=(("running_mean", Tensors(name=names[2])), ("running_var", Tensors(name=names[3]))),
            data=node.inputs[0],
        )

    def _layer_norm(self, node: Node) -> Layer | None:
        at, shape = Attributes.of(node), self._shape(node.inputs[0])
        normalised = shape[at.whole("axis", -1) :]
        bias = self._bias(node, 2)
        if self._shape(node.inputs[1]) != normalised or (bias and self._shape(bias.name) != normalised):
            return None
        settings = {"normalized_shape": normalised, "eps": at.number("epsilon", 1e-5), "bias": bias is not None}
        weight = Tensors(name=node.inputs[1])
        return Layer(kind=nn.LayerNorm, settings=settings, weight=weight, bias=bias, data=node.inputs[0])

    def _group_norm(self, node: Node) -> Layer:
        at, channels = Attributes.of(node), self._shape(node.inputs[0])[1]
        groups, eps = at.whole("num_groups", 1), at.number("epsilon", 1e-5)
        settings = {"num_groups": groups, "num_channels": channels, "eps": eps}
        weight, bias = (Tensors(name=name, repeated_to=channels) for name in node.inputs[1:3])
        return Layer(kind=nn.GroupNorm, settings=settings, weight=weight, bias=bias, data=node.inputs[0])

    def _instance_norm(self, node: Node) -> Layer | None:
        at, shape = Attributes.of(node), self._shape(node.inputs[0])
        if len(shape) not in _INSTANCE_NORMS or max(shape[2:]) == 1:  # torch's module refuses one element a channel
            return None
        settings = {"num_features": shape[1], "eps": at.number("epsilon", 1e-5), "affine": True}
        weight, bias = (Tensors(name=name) for name in node.inputs[1:3])
        kind = _INSTANCE_NORMS[len(shape)]
        return Layer(kind=kind, settings=settings, weight=weight, bias=bias, data=node.inputs[0])
