"""A torch network from a normalised graph: one module per weight, a small module for every other node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch.nn.functional as F
from torch import nn

from senseapp.networks.onnx.infer import Facts, is_scalar, main_input
from senseapp.networks.onnx.layers import Layer, LayerFinder, Tensors
from senseapp.networks.onnx.modules import (
    Counted,
    Length,
    OnnxNetwork,
    Operation,
    Positional,
    Scope,
    Slot,
    Step,
    Stored,
)
from senseapp.networks.onnx.names import FOLDED, Names
from senseapp.networks.onnx.operators import operation_of
from senseapp.networks.onnx.operators.windows import cropped, flat
from senseapp.networks.onnx.rewrite import fix_known_values, merge_activations
from senseapp.networks.onnx.torch_graph import Node, TorchGraph

_RESERVED = frozenset(dir(OnnxNetwork()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAs:
    """Which tensor of the file a parameter or buffer holds: its axes in ``order``, then in the parameter's shape."""

    initializer: str
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAt:
    """Where the node of the file that computes ``output`` reads a layer's parameter or buffer: as which input.

    ``shape`` is the one that it reads; ``transposed`` tells that the layer holds it with its two axes exchanged.
    """

    output: str
    position: int
    transposed: bool
    shape: tuple[int, ...]


def build_network(graph: TorchGraph, facts: Facts) -> BuiltNetwork:
    """Return a network that computes ``graph``, in ``eval()`` mode.

    Its values, ``facts``, are known for one number of images where its batch is fixed, else for two.
    """
    return BuiltNetwork(graph=merge_activations(fix_known_values(graph, facts)), facts=facts).build()


_Arguments = tuple[tuple[Slot, ...], list[str]]  # of an operation, and the values that these refer to


@dataclass(slots=True, kw_only=True)
class BuiltNetwork:
    """A network of ``graph`` and where its numbers come from.

    Attributes:
        tensors: by parameter or buffer name; those that are computed from several tensors are left out.
        readers: of each parameter or buffer of a layer.
    """

    graph: TorchGraph
    facts: Facts
    network: OnnxNetwork = field(default_factory=OnnxNetwork)
    names: Names = field(default_factory=lambda: Names(_RESERVED))
    paths: dict[object, str] = field(default_factory=dict)  # by what makes calls those of one module
    parameters: dict[Tensors, nn.Parameter] = field(default_factory=dict)
    tensors: dict[str, StoredAs] = field(default_factory=dict)
    readers: dict[str, list[ReadAt]] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)

    def build(self) -> BuiltNetwork:
        """Add the modules and their calls to the network, and return this."""
        for node, call in reversed(self._calls(self._layers())):
            if isinstance(call, Layer):
                self._add_layer(node, call)
            else:
                slots, tensors = call
                name = node.name if node.scope is None else f"{node.scope}.{node.op.lower()}"
                self._add(name, Operation(node.op, operation_of(node).of(node), slots), tensors, node.outputs)
        for name in self.graph.outputs:
            self._use(name)
        self.network.input_names = tuple(each.name for each in self.graph.inputs)
        self.network.output_names = self.graph.outputs
        self.network.release_values()
        self.network.eval()
        return self

    def _layers(self) -> dict[str, Layer]:
        """Return the layers, by node."""
        finder = LayerFinder(self.graph, self.facts[-1][1])
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

    def _claim(self, node: Node, layer: Layer) -> None:
        path = self.paths.get(layer.identity)
        if path is None:
            path = self.paths[layer.identity] = self.names.claim(self._layer_name(node, layer))
            self._place(path, layer.module(self.graph.constants, self.parameters))
            for attribute, tensors in layer.tensors.items():
                self._record(f"{path}.{attribute}", tensors)
        for attribute, tensors in layer.tensors.items():
            read_by, position = layer.place(attribute, node)
            place = ReadAt(
                output=read_by.outputs[0],
                position=position,
                transposed=tensors.transposed,
                shape=tuple(self.graph.constants[tensors.name].value.shape),
            )
            self.readers.setdefault(f"{path}.{attribute}", []).append(place)

    def _layer_name(self, node: Node, layer: Layer) -> str:
        found = self.graph.constants[layer.weight.name]
        stored = ((not found.reshaped and found.initializer) or layer.weight.name).removeprefix(FOLDED)
        if layer.apart and node.scope:
            return node.scope
        if stored.endswith(".weight") and "::" not in stored:
            return stored.removesuffix(".weight")
        return node.scope or node.name

    def _record(self, parameter: str, tensors: Tensors) -> None:
        found = self.graph.constants[tensors.name]
        whole = tensors.repeated_to in (0, found.value.numel())
        if found.initializer and whole and not (found.reshaped and tensors.transposed):
            order = found.order or tuple(range(found.value.ndim))
            order = order[::-1] if tensors.transposed else order
            self.tensors[parameter] = StoredAs(initializer=found.initializer, order=order)

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
            padded = Operation("Pad", partial(F.pad, pad=flat(layer.pads)), (Positional(0),))
            self._add(f"{path}_pad", padded, [layer.data], [data])
        result = (layer.absorbs or node).outputs[0]
        inner = f"{node.name} full output" if layer.crop else result
        self._step(path, [data], [inner])
        if layer.crop:
            cut = Operation("Slice", partial(cropped, ends=layer.crop), (Positional(0),))
            self._add(f"{path}_crop", cut, [inner], [result])

    def _add(self, wanted: str, operation: Operation, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        for name in inputs:  # constants get their names first
            self._use(name)
        path = self.names.claim(wanted)
        self._place(path, operation)
        self._step(path, inputs, outputs)

    def _slot(self, node: Node, position: int, tensors: list[str]) -> Slot:
        """Return how an operation gets an input; adds the tensor that this needs to ``tensors``."""
        name, operator = node.inputs[position], operation_of(node)
        constant = self.graph.constants.get(name)
        if not name:
            return None
        is_number = position in operator.numbers
        if node.op == "Reshape" and is_number and (target := reshape_target(node, self.facts)) is not None:
            return target
        if is_number and constant is not None:
            return constant.value.tolist()
        if position in operator.scalars and constant is not None and is_scalar(constant.value):
            return constant.value.item()
        if is_number and (found := counted_numbers(name, self.facts)) is not None:
            tensors.append(main_input(self.graph).name)
            return replace(found, index=len(tensors) - 1)
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


def reshape_target(node: Node, facts: Facts) -> Counted | None:
    """Return the target of a Reshape in lengths of its input, for any number of images and perhaps fewer channels.

    The first lengths stay as they are. What is left in one axis, and channels that stay the last axis, get −1.
    None where the target does not follow from the input so.
    """
    shapes = [(tuple(values[node.inputs[0]].shape), tuple(values[node.outputs[0]].shape)) for _, values in facts]
    old, new = shapes[0]
    kept = 0
    while kept < min(len(old), len(new) - 1) and all(a[kept] == b[kept] for a, b in shapes):
        kept += 1
    ends_alike = len(old) > kept < len(new) and old[-1] == new[-1]
    rest = _with_images([b[kept:] for _, b in shapes], facts, _grown([a for a, _ in shapes], facts))
    if not rest or 0 in old or not (kept or ends_alike):
        return None
    last = -1 if len(rest) == 1 or ends_alike else rest[-1]
    return Counted(numbers=(*map(Length, range(kept)), *rest[:-1], last), scalar=False, index=0)


def counted_numbers(name: str, facts: Facts) -> Counted | None:
    """Return how the numbers in ``name`` follow from the images, whose number is the first length of the input.

    None where they do not simply grow with it.
    """
    known = [values[name] for _, values in facts]
    if any(each.is_meta or each.is_floating_point() for each in known):
        return None
    numbers = _with_images([each.reshape(-1).tolist() for each in known], facts, Length(0))
    return None if numbers is None else Counted(numbers=numbers, scalar=known[0].ndim == 0, index=0)


def _grown(shapes: Sequence[Sequence[int]], facts: Facts) -> Length | None:
    """Return the number of images as a length of the first axis that grows with it; None where none does."""
    for axis, lengths in enumerate(zip(*shapes, strict=True)):
        unit = lengths[0] // facts[0][0]
        if unit and lengths[0] != lengths[-1] and list(lengths) == [unit * count for count, _ in facts]:
            return Length(axis, unit=unit)
    return None


def _with_images(
    lists: Sequence[Sequence[int]], facts: Facts, images: Length | None
) -> tuple[int | Length, ...] | None:
    """Return numbers that are ``lists`` for the numbers of images of ``facts``; None where one does not grow so."""
    numbers: list[int | Length] = []
    for column in zip(*lists, strict=True):
        factor = column[0] // facts[0][0]
        if len(set(column)) == 1:
            numbers.append(column[0])
        elif images is not None and list(column) == [factor * count for count, _ in facts]:
            numbers.append(Length(images.axis, unit=images.unit, factor=factor))
        else:
            return None
    return tuple(numbers)
