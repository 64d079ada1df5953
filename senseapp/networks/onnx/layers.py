"""Nodes with constant weights as torch's own modules: convolutions, linear layers, norms."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.networks.onnx.operators.products import by_channel
from senseapp.networks.onnx.operators.windows import Ends, Window, symmetric, transposed_ends
from senseapp.networks.onnx.torch_graph import Constant, Node, TorchGraph
from senseapp.networks.profile import BATCH_NORMS

_BATCH_NORMS: dict[int, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_INSTANCE_NORMS: dict[int, Any] = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
_POSITIONS = {"weight": 1, "bias": 2, "running_mean": 3, "running_var": 4}  # among the inputs of a node


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """One tensor of a layer: the constant ``name`` of the graph, perhaps with its two axes exchanged or repeated."""

    name: str
    transposed: bool = False
    repeated_to: int = 0

    def of(self, constants: Mapping[str, Constant]) -> Tensor:
        """Return the numbers, in memory of their own."""
        value = constants[self.name].value
        value = value.T if self.transposed else value
        value = by_channel(value.reshape(-1), self.repeated_to) if self.repeated_to else value
        return value.detach().clone().contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Description of the module for a node: of ``kind`` with ``settings``, on tensors of the graph.

    Attributes:
        tensors: by attribute of the module. All nodes that use the main one, ``weight``, share one module.
        pads, crop: what is added around its input ``data``, and cut from its output, where the module itself cannot.
        absorbs: the node after it, a sum with the bias, that is part of the layer.
        apart: where the node was found, for layers of vectors: files store equal vectors of several layers once.
    """

    kind: Callable[..., nn.Module]
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensors]
    data: str
    pads: Ends = ()
    crop: Ends = ()
    absorbs: Node | None = None
    apart: str = ""

    @property
    def weight(self) -> Tensors:
        """The main tensor."""
        return self.tensors["weight"]

    @property
    def identity(self) -> object:
        """What two nodes must have in common to be calls of one module."""
        return (self.kind, tuple(self.settings.items()), tuple(self.tensors.items()), self.apart)

    def place(self, attribute: str, node: Node) -> tuple[Node, int]:
        """Return where an attribute is read where ``node`` is this layer: the node and the position of its input."""
        if attribute == "bias" and self.absorbs is not None:
            return self.absorbs, self.absorbs.inputs.index(self.tensors[attribute].name)
        return node, _POSITIONS[attribute]

    def module(self, constants: Mapping[str, Constant], parameters: dict[Tensors, nn.Parameter]) -> nn.Module:
        """Return the module with its numbers; matrices in ``parameters`` are shared with other layers."""
        with torch.device("meta"):
            module = self.kind(**self.settings)
        for name, tensors in self.tensors.items():
            if name.startswith("running"):
                module.register_buffer(name, tensors.of(constants))
            else:
                own = nn.Parameter(tensors.of(constants))
                # equal vectors of different layers are stored once
                own = parameters.setdefault(tensors, own) if constants[tensors.name].value.ndim > 1 else own
                module.register_parameter(name, own)
        if isinstance(module, BATCH_NORMS):
            module.num_batches_tracked = torch.zeros((), dtype=torch.int64)
        return module.eval()


class LayerFinder:
    """Finds the layers of ``graph``; ``values`` of every name tell of their shapes."""

    def __init__(self, graph: TorchGraph, values: Mapping[str, Tensor]) -> None:
        self.constants = graph.constants
        self.values = values
        self.readers = Counter(dict.fromkeys(graph.outputs, 2))  # nodes and outputs that read a value
        self.readers.update(name for node in graph.nodes for name in node.inputs)
        self.sums = {name: node for node in graph.nodes if node.op == "Add" for name in node.inputs}

    def layer(self, node: Node) -> Layer | None:
        """Return what ``node`` becomes; None where its weights are computed, or torch has no such module."""
        find = _KINDS.get(node.op)
        if find is None or not self._is_known(node.inputs[1]):
            return None
        if node.op not in ("Gemm", "MatMul") and not all(self._is_known(name) for name in node.inputs[2:] if name):
            return None
        found = find(self, node)
        if found is None or self.constants[found.weight.name].value.ndim > 1:
            return found
        return replace(found, apart=node.name if node.scope is None else node.scope)

    def _is_known(self, name: str) -> bool:
        return name in self.constants and self.constants[name].value.is_floating_point()

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def _bias(self, node: Node) -> str:
        """Return the name of the bias; empty for none, which torch's newer exporter writes as computed zeros."""
        name = "".join(node.inputs[2:3])
        found = self.constants.get(name)
        is_none = found is not None and not found.weight and not found.initializer and not found.value.any()
        return "" if is_none else name

    def _with_bias(self, node: Node, kind: Any, settings: Mapping[str, Any], **more: Any) -> Layer:
        """Return a layer of the first input, whose weight is the second one and whose bias may be the third."""
        names = {"weight": node.inputs[1], "bias": self._bias(node)}
        tensors = {attribute: Tensors(name=name) for attribute, name in names.items() if name}
        settings = {**settings, "bias": "bias" in tensors}
        return Layer(kind=kind, settings=settings, tensors=tensors, data=node.inputs[0], **more)

    def _convolution(self, node: Node) -> Layer:
        weight, groups = self._shape(node.inputs[1]), int(node.attributes.get("group", 1))
        window, lengths = Window.of(node.attributes, weight[2:]), self._shape(node.inputs[0])[2:]
        channels, more = (weight[1] * groups, weight[0]), dict[str, Any]()  # of input and output
        ends, left = window.ends(lengths), "pads"
        if node.op == "ConvTranspose":
            channels, left = channels[::-1], "crop"
            more["output_padding"], ends = transposed_ends(node.attributes, window, lengths)
        padding = symmetric(ends)
        settings = {
            **{"in_channels": channels[0], "out_channels": channels[1], "groups": groups},
            **{"kernel_size": window.kernel, "stride": window.strides, "dilation": window.dilations},
            **{"padding": padding or (0,) * window.rank, **more},
        }
        kind = getattr(nn, f"{node.op}{window.rank}d")
        return self._with_bias(node, kind, settings, **({} if padding is not None else {left: ends}))

    def _gemm(self, node: Node) -> Layer | None:
        at, shape = node.attributes, self._shape(node.inputs[1])
        if at.get("alpha", 1) != 1 or at.get("beta", 1) != 1 or at.get("transA") or len(shape) != 2:
            return None
        bias = self._bias(node)
        as_stored = bool(at.get("transB"))
        if bias and not self._is_vector(bias, shape[0 if as_stored else 1]):
            return None
        return self._linear(node, as_stored=as_stored, bias=bias)

    def _product(self, node: Node) -> Layer | None:
        shape = self._shape(node.inputs[1])
        if len(shape) != 2 or self.values[node.inputs[0]].ndim < 2:
            return None
        result = node.outputs[0]
        following = self.sums.get(result) if self.readers[result] == 1 else None
        if following is not None:
            name = next(each for each in following.inputs if each != result)
            if len(self._shape(name)) <= self.values[result].ndim and self._is_vector(name, shape[1]):
                return self._linear(node, as_stored=False, bias=name, absorbs=following)
        return self._linear(node, as_stored=False, bias="")

    def _is_vector(self, name: str, length: int) -> bool:
        shape = self._shape(name)
        return self._is_known(name) and shape[-1:] == (length,) and max(shape[:-1], default=1) == 1

    def _linear(self, node: Node, *, as_stored: bool, bias: str, absorbs: Node | None = None) -> Layer:
        outs, ins = self._shape(node.inputs[1])[:: 1 if as_stored else -1]
        tensors = {"weight": Tensors(name=node.inputs[1], transposed=not as_stored)}
        if bias:
            tensors["bias"] = Tensors(name=bias, repeated_to=outs)
        settings = {"in_features": ins, "out_features": outs, "bias": bool(bias)}
        return Layer(kind=nn.Linear, settings=settings, tensors=tensors, data=node.inputs[0], absorbs=absorbs)

    def _norm(self, node: Node, kind: Any, *attributes: str, repeated_to: int = 0, **settings: Any) -> Layer:
        names = {each: node.inputs[_POSITIONS[each]] for each in attributes or ("weight", "bias")}
        tensors = {each: Tensors(name=name, repeated_to=repeated_to) for each, name in names.items()}
        settings["eps"] = float(node.attributes.get("epsilon", 1e-5))
        return Layer(kind=kind, settings=settings, tensors=tensors, data=node.inputs[0])

    def _batch_norm(self, node: Node) -> Layer | None:
        kind = _BATCH_NORMS.get(self.values[node.inputs[0]].ndim)
        if kind is None or node.attributes.get("training_mode"):
            return None
        return self._norm(node, kind, *_POSITIONS, num_features=self._shape(node.inputs[1])[0])

    def _layer_norm(self, node: Node) -> Layer | None:
        normalised, bias = self._shape(node.inputs[0])[int(node.attributes.get("axis", -1)) :], self._bias(node)
        if any(self._shape(name) != normalised for name in (node.inputs[1], bias) if name):
            return None
        own = ("weight", "bias") if bias else ("weight",)
        return self._norm(node, nn.LayerNorm, *own, normalized_shape=normalised, bias=bool(bias))

    def _group_norm(self, node: Node) -> Layer:
        channels, groups = self._shape(node.inputs[0])[1], int(node.attributes.get("num_groups", 1))
        return self._norm(node, nn.GroupNorm, repeated_to=channels, num_groups=groups, num_channels=channels)

    def _instance_norm(self, node: Node) -> Layer | None:
        shape = self._shape(node.inputs[0])
        if len(shape) not in _INSTANCE_NORMS or max(shape[2:]) == 1:  # torch's module refuses one element a channel
            return None
        return self._norm(node, _INSTANCE_NORMS[len(shape)], num_features=shape[1], affine=True)


_KINDS: dict[str, Callable[[LayerFinder, Node], Layer | None]] = {
    "Conv": LayerFinder._convolution,
    "ConvTranspose": LayerFinder._convolution,
    "Gemm": LayerFinder._gemm,
    "MatMul": LayerFinder._product,
    "BatchNormalization": LayerFinder._batch_norm,
    "LayerNormalization": LayerFinder._layer_norm,
    "GroupNormalization": LayerFinder._group_norm,
    "InstanceNormalization": LayerFinder._instance_norm,
}
