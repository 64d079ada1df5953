"""A torch network from a normalised graph: one module per weight, a small module for every other node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import nn

from senseapp.networks.onnx.growth import counted_numbers, reshape_target
from senseapp.networks.onnx.infer import Facts, is_scalar
from senseapp.networks.onnx.layers import Layer, LayerFinder, Tensors
from senseapp.networks.onnx.modules import Fixed, OnnxNetwork, Operation, Positional, Scope, Slot, Step, Stored
from senseapp.networks.onnx.names import Names, without_folding
from senseapp.networks.onnx.operators import operation_of
from senseapp.networks.onnx.operators.windows import cropped, flat
from senseapp.networks.onnx.rewrite.activations import merge_activations
from senseapp.networks.onnx.rewrite.folding import fix_known_values
from senseapp.networks.onnx.torch_graph import Node, TorchGraph

_RESERVED = frozenset(dir(OnnxNetwork()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAs:
    """Which tensor of the file a parameter or buffer holds: its axes in ``order``, then in the parameter's shape."""

    initializer: str
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAt:
    """Where a node of the file reads a layer's parameter or buffer.

    Attributes:
        output: first value that the node computes, which says which node it is.
        position: among its inputs.
        transposed: whether the layer holds it with its two axes exchanged.
        shape: that the node reads it in.
    """

    output: str
    position: int
    transposed: bool
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltNetwork:
    """A network and where its numbers come from.

    Attributes:
        tensors: by parameter or buffer name; those that are computed from several tensors are left out.
        readers: of each parameter or buffer of a layer.
    """

    network: OnnxNetwork
    tensors: Mapping[str, StoredAs]
    readers: Mapping[str, tuple[ReadAt, ...]]


def build_network(graph: TorchGraph, facts: Facts) -> BuiltNetwork:
    """Return a network that computes ``graph``, in ``eval()`` mode.

    Args:
        graph: in topological order.
        facts: values of the graph, by number of images: for one where its batch is fixed, else for two.
    """
    return _Builder(graph=merge_activations(fix_known_values(graph, facts)), facts=facts).build()


_Arguments = tuple[tuple[Slot, ...], list[str]]  # of an operation, and the values that these refer to


@dataclass(slots=True, kw_only=True)
class _Builder:
    graph: TorchGraph
    facts: Facts
    network: OnnxNetwork = field(default_factory=OnnxNetwork)
    names: Names = field(default_factory=lambda: Names(_RESERVED))
    paths: dict[object, str] = field(default_factory=dict)  # by what makes calls those of one module
    parameters: dict[Tensors, nn.Parameter] = field(default_factory=dict)
    tensors: dict[str, StoredAs] = field(default_factory=dict)
    readers: dict[str, list[ReadAt]] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    makers: Mapping[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.makers = self.graph.producers()

    def build(self) -> BuiltNetwork:
        layers = self._layers()
        for node, call in reversed(self._calls(layers)):
            if isinstance(call, Layer):
                self._add_layer(node, call)
            else:
                self._add_operation(node, *call)
        for name in self.graph.outputs:
            self._use(name)
        self.network.input_names = tuple(each.name for each in self.graph.inputs)
        self.network.output_names = self.graph.outputs
        self.network.release_values()
        readers = {name: tuple(places) for name, places in self.readers.items()}
        return BuiltNetwork(network=self.network.eval(), tensors=self.tensors, readers=readers)

    def _layers(self) -> dict[str, Layer]:
        """Return the layers, by node."""
        readers: dict[str, int] = dict.fromkeys(self.graph.outputs, 2)
        sums: dict[str, Node] = {}
        for node in self.graph.nodes:
            for name in node.inputs:
                readers[name] = readers.get(name, 0) + 1
                if node.op == "Add":
                    sums[name] = node
        finder = LayerFinder(constants=self.graph.constants, values=self.facts[-1][1], readers=readers, sums=sums)
        found: dict[str, Layer] = {}
        for node in self.graph.nodes:
            layer = finder.layer(node)
            if layer is not None:
                found[node.name] = layer
                self._claim(node, layer)
        return found

    def _calls(self, layers: Mapping[str, Layer]) -> list[tuple[Node, Layer | _Arguments]]:
        """Return the calls, last first, without those that compute constants only."""
        absorbed = {layer.absorbs.name for layer in layers.values() if layer.absorbs is not None}
        wanted = set(self.graph.outputs)
        calls: list[tuple[Node, Layer | _Arguments]] = []
        for node in reversed(self.graph.nodes):
            if wanted.isdisjoint(node.outputs):
                continue
            if node.name in absorbed:
                wanted.update(node.inputs)
            elif node.name in layers:
                wanted.add(layers[node.name].data)
                calls.append((node, layers[node.name]))
            else:
                tensors: list[str] = []
                slots = tuple(self._slot(node, position, tensors) for position in range(len(node.inputs)))
                wanted.update(tensors)
                calls.append((node, (slots, tensors)))
        return calls

    def _key(self, name: str) -> str:
        found = self.graph.constants[name]
        return found.initializer if found.initializer and not found.reshaped else name

    def _claim(self, node: Node, layer: Layer) -> None:
        if layer.identity not in self.paths:
            self._add_module(node, layer)
        path = self.paths[layer.identity]
        for attribute, read_by, position in layer.places(node):
            tensors = layer.tensors[attribute]
            place = ReadAt(
                output=read_by.outputs[0],
                position=position,
                transposed=tensors.transposed,
                shape=tuple(self.graph.constants[tensors.name].value.shape),
            )
            self.readers.setdefault(f"{path}.{attribute}", []).append(place)

    def _add_module(self, node: Node, layer: Layer) -> None:
        path = self.paths[layer.identity] = self.names.claim(self._layer_name(node, layer))
        self._place(path, layer.module(self.graph.constants, self.parameters))
        for attribute, tensors in layer.tensors.items():
            self._record(f"{path}.{attribute}", tensors)

    def _layer_name(self, node: Node, layer: Layer) -> str:
        stored = without_folding(self._key(layer.weight.name))
        if layer.apart and node.scope:
            return node.scope
        if stored.endswith(".weight") and "::" not in stored:
            return stored.removesuffix(".weight")
        return node.scope or node.name

    def _order(self, tensors: Tensors) -> tuple[int, ...]:
        """Return in which order a layer holds the axes of the tensor of the file, else those of the constant."""
        constant = self.graph.constants[tensors.name]
        order = constant.order or tuple(range(constant.value.ndim))
        return order[::-1] if tensors.transposed else order

    def _record(self, parameter: str, tensors: Tensors) -> None:
        found = self.graph.constants[tensors.name]
        whole = tensors.repeated_to in (0, found.value.numel())
        if found.initializer and whole and not (found.reshaped and tensors.transposed):
            self.tensors[parameter] = StoredAs(initializer=found.initializer, order=self._order(tensors))

    def _place(self, path: str, child: nn.Module) -> None:
        holder, attribute = self._holder(path)
        holder.add_module(attribute, child)

    def _holder(self, path: str) -> tuple[nn.Module, str]:
        """Return the module that holds ``path``, made where it is missing, and the attribute in it."""
        holder: nn.Module = self.network
        *scopes, attribute = path.split(".")
        for scope in scopes:
            if not isinstance(getattr(holder, scope, None), nn.Module):
                holder.add_module(scope, Scope())
            holder = holder.get_submodule(scope)
        return holder, attribute

    def _step(self, path: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        for name in inputs:
            self._use(name)
        holder, attribute = self._holder(path)
        step = Step(holder=holder, attribute=attribute, inputs=tuple(inputs), outputs=tuple(outputs))
        self.network.steps.append(step)

    def _add_layer(self, node: Node, layer: Layer) -> None:
        path, data = self.paths[layer.identity], layer.data
        if layer.pads:
            data = f"{node.name} padded input"
            self._add_function(f"{path}_pad", "Pad", partial(F.pad, pad=flat(layer.pads)), layer.data, data)
        result = (layer.absorbs or node).outputs[0]
        inner = f"{node.name} full output" if layer.crop else result
        self._step(path, [data], [inner])
        if layer.crop:
            self._add_function(f"{path}_crop", "Slice", partial(cropped, ends=layer.crop), inner, result)

    def _add_function(self, wanted: str, op: str, function: Any, source: str, output: str) -> None:
        path = self.names.claim(wanted)
        self._place(path, Operation(op, function, (Positional(0),)))
        self._step(path, [source], [output])

    def _add_operation(self, node: Node, slots: tuple[Slot, ...], tensors: list[str]) -> None:
        for name in tensors:
            self._use(name)
        path = self.names.claim(node.name if node.scope is None else f"{node.scope}.{node.op.lower()}")
        self._place(path, Operation(node.op, operation_of(node).of(node), slots))
        self._step(path, tensors, node.outputs)

    def _slot(self, node: Node, position: int, tensors: list[str]) -> Slot:
        """Return how an operation gets an input; adds the tensor that this needs to ``tensors``."""
        name, operator = node.inputs[position], operation_of(node)
        constant = self.graph.constants.get(name)
        if not name:
            return Fixed(None)
        is_number = position in operator.numbers
        if node.op == "Reshape" and is_number and (target := reshape_target(node, self.facts)) is not None:
            return target
        if is_number and constant is not None:
            return Fixed(constant.value.tolist())
        if position in operator.scalars and constant is not None and is_scalar(constant.value):
            return Fixed(constant.value.item())
        if is_number and (found := counted_numbers(name, self.facts, self.makers)) is not None:
            tensors.append(found[0])
            return replace(found[1], index=len(tensors) - 1)
        tensors.append(name)
        return Positional(len(tensors) - 1, as_numbers=is_number)

    def _use(self, name: str) -> None:
        """Make sure that the network can read the constant ``name``."""
        constant = self.graph.constants.get(name)
        if constant is None or name in self.stored:
            return
        self.stored.add(name)
        path = self.names.claim(constant.initializer or name)
        holder, attribute = self._holder(path)
        value = constant.value.detach().clone()
        shared = self.parameters.get(Tensors(name=name))
        if shared is not None:
            holder.register_parameter(attribute, shared)
        elif constant.weight and value.is_floating_point() and value.numel() > 1:
            holder.register_parameter(attribute, nn.Parameter(value))
        else:
            holder.register_buffer(attribute, value)
        self.network.stored.append(Stored(name=name, holder=holder, attribute=attribute))
        self._record(path, Tensors(name=name))
