"""Attention in a graph: products of two activations around a softmax, and which channels belong to which head.

Exporters write attention as reshapes, transposes and two matrix products, in many orders. Its heads are the axis that
both products treat as a batch. Which channels of the layers around are those of a head follows from the steps between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.networks.onnx.channel_paths import (
    SOFTMAXES,
    UNIT,
    Arrival,
    ChannelPaths,
    HeadTable,
    NotFollowed,
    along,
    channel_axis,
    distinct,
    is_layer,
    module_of,
    operation_of,
)
from senseapp.networks.onnx.modules import Counted, Fixed, OnnxNetwork, Operation, PerImage, Slot, Step
from senseapp.networks.profile import CONVOLUTIONS
from senseapp.networks.trace import CallTrace

_FOLLOWED = frozenset({"MatMul", "AttentionScores", "AttentionValues"})
_PRODUCTS = _FOLLOWED | {"Einsum"}
_UNKNOWN = "which of its channels are a head is not known"

ByHead = tuple[tuple[int, ...], ...]
"""Channels of each head, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadChannels:
    """A layer of an attention, and its channels by head; all heads have equally many."""

    layer: str
    channels: ByHead


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphAttention:
    """An attention that a graph writes as matrix products.

    Attributes:
        name: of the module that it was exported from, else of its first product.
        products: names of both products.
        makers: output channels of the layers of queries, keys and values; a layer of several is there once for each.
        reader: input channels of the layer that reads the result.
        sizes: by module and position among its arguments: which of the numbers there are multiples of the heads.
        tables: stored tensors with numbers of each head.
    """

    name: str
    products: tuple[str, str]
    makers: tuple[HeadChannels, ...]
    reader: HeadChannels
    sizes: Mapping[str, Mapping[int, tuple[int, ...]]]
    tables: tuple[HeadTable, ...]

    @property
    def num_heads(self) -> int:
        """Heads of the network as it was read."""
        return len(self.reader.channels)

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of what changes with the number of heads besides the layers."""
        return tuple(dict.fromkeys((*self.sizes, *(table.module for table in self.tables))))

    def remove(self, model: nn.Module, heads: Sequence[int]) -> None:
        """Remove ``heads`` from the steps and tables of ``model``, not from its layers."""
        gone = set(heads)
        for name, slots in self.sizes.items():
            module = model.get_submodule(name)
            assert isinstance(module, Operation)
            module.slots = tuple(
                _scaled(slot, slots[place], self.num_heads, len(gone)) if place in slots else slot
                for place, slot in enumerate(module.slots)
            )
        for table in self.tables:
            holder = model.get_submodule(table.module)
            value = getattr(holder, table.attribute)
            kept = [place for place, head in enumerate(table.heads) if head not in gone]
            fewer = value.detach().index_select(table.axis, torch.tensor(kept, device=value.device))
            if isinstance(value, nn.Parameter):
                fewer = nn.Parameter(fewer, requires_grad=value.requires_grad)
            setattr(holder, table.attribute, fewer)


def _scaled(slot: Slot, places: Sequence[int], num_heads: int, gone: int) -> Slot:
    """Return ``slot`` with the numbers at ``places`` for the heads that are left."""

    def fewer(number: Any) -> Any:
        if isinstance(number, PerImage):
            return PerImage(fewer(number.factor))
        return number // num_heads * (num_heads - gone)

    if isinstance(slot, Fixed):
        return Fixed([fewer(each) if place in places else each for place, each in enumerate(slot.value)])
    assert isinstance(slot, Counted)
    numbers = [fewer(each) if place in places else each for place, each in enumerate(slot.numbers)]
    return replace(slot, numbers=tuple(numbers), unit=fewer(slot.unit) if UNIT in places else slot.unit)


def attention_in(model: nn.Module, trace: CallTrace) -> tuple[list[GraphAttention], dict[str, str]]:
    """Return the attention of networks from files in ``model``, and by layer why its output channels cannot go.

    A network that does not come from a file has none here: its attention is known by its module. ``trace`` is a pass
    of ``model``.
    """
    names = {module: name for name, module in model.named_modules()}
    shapes: dict[str, tuple[int, ...]] = {}
    for call in trace.calls:
        shapes.setdefault(call.module, call.output_shape)
    found: list[GraphAttention] = []
    reasons: dict[str, str] = {}
    for network in (each for each in model.modules() if isinstance(each, OnnxNetwork)):
        attentions, others = _Search(paths=ChannelPaths(network=network, names=names, shapes=shapes)).all()
        found += attentions
        reasons |= others
    return found, reasons


@dataclass(slots=True, kw_only=True)
class _Search:
    paths: ChannelPaths
    makers: dict[str, Step] = field(init=False)
    readers: dict[str, list[Step]] = field(init=False)
    calls: dict[nn.Module, list[Step]] = field(init=False)

    def __post_init__(self) -> None:
        steps = self.paths.network.steps
        self.makers = {output: step for step in steps for output in step.outputs}
        self.readers, self.calls = {}, {}
        for step in steps:
            self.calls.setdefault(module_of(step), []).append(step)
            for name in dict.fromkeys(step.inputs):
                self.readers.setdefault(name, []).append(step)

    def all(self) -> tuple[list[GraphAttention], dict[str, str]]:
        """Return each attention whose heads are known, and by layer of each other product why they are not."""
        products = [step for step in self.paths.network.steps if self._is_product(step)]
        found: list[GraphAttention] = []
        whys: dict[str, str] = {}
        for scores in products:
            values = self._after_softmax(scores, products)
            if values is None:
                continue
            try:
                found.append(self._attention(scores, values))
            except Exception as error:  # a step may refuse numbers in place of activations in any way
                why = str(error) if isinstance(error, NotFollowed) else _UNKNOWN
                whys |= dict.fromkeys((self.paths.name(scores), self.paths.name(values)), why)
        found = _apart(found)
        known = {name for attention in found for name in attention.products}
        reasons: dict[str, str] = {}
        for step in products:
            name = self.paths.name(step)
            if name not in known:
                why = (
                    f"Attention is written as matrix products in the file (“{name}”): {whys.get(name, _UNKNOWN)}, so "
                    "none can be removed."
                )
                reasons |= {self.paths.names[layer]: why for layer in self._layers_before(step.inputs)} | reasons
        return [each for each in found if not any(maker.layer in reasons for maker in each.makers)], reasons

    def _is_product(self, step: Step) -> bool:
        if operation_of(step) not in _PRODUCTS or len(step.inputs) < 2:
            return False
        return all(self._layers_before([name]) for name in step.inputs)

    def _layers_before(self, names: Iterable[str], until: Step | None = None) -> list[nn.Module]:
        """Return the nearest layers that compute ``names``, across norms and what has no weights but ``until``."""
        pending, seen = list(names), set[str]()
        found: dict[nn.Module, None] = {}
        while pending:
            each = pending.pop()
            step = self.makers.get(each)
            if step is None or step is until or each in seen:
                continue
            seen.add(each)
            if is_layer(module_of(step)):
                found[module_of(step)] = None
            else:
                pending.extend(step.inputs)
        return list(found)

    def _after_softmax(self, scores: Step, products: Sequence[Step]) -> Step | None:
        """Return the product that reads the softmax of ``scores``, and nothing else does."""
        step, met = scores, False
        while True:
            readers = self.readers.get(step.outputs[0], [])
            if len(readers) != 1:
                return None
            step = readers[0]
            if any(step is each for each in products):
                return step if met else None
            met |= operation_of(step) in SOFTMAXES
            if is_layer(module_of(step)):
                return None

    def _attention(self, scores: Step, values: Step) -> GraphAttention:
        """Return the attention of these products; raises NotFollowed where its heads are not known."""
        ends = (scores, values)
        if any(operation_of(each) not in _FOLLOWED for each in ends):
            raise NotFollowed(_UNKNOWN)
        arrivals = [(step, self.paths.channels(step, ends)) for step in self._making(scores, values)]
        axis, heads = _axis_of_heads([each for _, arrived in arrivals for each in arrived])
        makers: list[HeadChannels] = []
        passages = []
        for step, arrived in arrivals:
            own = [_by_head(each.numbers, axis, heads) for each in arrived]
            makers += [HeadChannels(layer=self.paths.name(step), channels=each) for each in own]
            passages.append(self.paths.follow_heads(self._heads_of_channels(step, own), ends))
        numbers = torch.tensor(heads)
        passages.append(self.paths.follow_heads(self.paths.spread(scores, axis, numbers), ends))
        after = self.paths.follow_heads(self.paths.spread(values, axis, numbers), ends)
        name = self.paths.name(scores)
        return GraphAttention(
            name=name.rpartition(".")[0] or name,
            products=(name, self.paths.name(values)),
            makers=tuple(makers),
            reader=self._reader(after.ends, len(set(heads))),
            sizes={key: value for passage in (*passages, after) for key, value in passage.sizes.items()},
            tables=tuple(table for passage in (*passages, after) for table in passage.tables),
        )

    def _making(self, scores: Step, values: Step) -> list[Step]:
        """Return the calls of the layers that make queries, keys and values, in the order of the graph."""
        own = [name for name in values.inputs if scores not in self._steps_before(name)]
        layers = self._layers_before([*scores.inputs, *own])
        for layer in layers:
            if len(self.calls[layer]) > 1 or (isinstance(layer, CONVOLUTIONS) and layer.groups > 1):
                raise NotFollowed(f"{self.paths.names[layer]} is called several times, or in groups of channels")
        return sorted((self.calls[layer][0] for layer in layers), key=self.paths.network.steps.index)

    def _steps_before(self, name: str) -> list[Step]:
        """Return the steps that compute ``name``, from the nearest layers on."""
        pending = [self.makers[name]] if name in self.makers else []
        found: list[Step] = []
        while pending:
            step = pending.pop()
            if not is_layer(module_of(step)) and not any(step is each for each in found):
                found.append(step)
                pending += [self.makers[each] for each in step.inputs if each in self.makers]
        return found

    def _heads_of_channels(self, step: Step, own: Sequence[ByHead]) -> dict[str, Tensor]:
        """Return the head of each output channel of a layer, in the shape of its output."""
        axis = channel_axis(module_of(step), len(self.paths.shape(step)))
        heads = torch.full((self.paths.shape(step)[axis],), -1)
        for channels in own:
            for head, of_head in enumerate(channels):
                if (heads[list(of_head)] >= 0).any():
                    raise NotFollowed(f"it reads channels of {self.paths.name(step)} twice")
                heads[list(of_head)] = head
        if (heads < 0).any():
            raise NotFollowed(f"it leaves out channels of {self.paths.name(step)}")
        return self.paths.spread(step, axis, heads)

    def _reader(self, ends: Sequence[Arrival], count: int) -> HeadChannels:
        """Return the one layer that reads the result, and its input channels by head."""
        if len(ends) != 1 or len(self.calls[module_of(ends[0].step)]) > 1:
            raise NotFollowed("several layers read its result")
        layer, numbers = module_of(ends[0].step), ends[0].numbers
        heads = along(numbers, channel_axis(layer, numbers.ndim))
        if heads is None or len({heads.count(head) for head in range(count)}) > 1:
            raise NotFollowed("its heads are mixed before the next layer")
        if isinstance(layer, CONVOLUTIONS) and layer.groups > 1:
            raise NotFollowed("the next layer convolves in groups")
        places = [tuple(place for place, each in enumerate(heads) if each == head) for head in range(count)]
        return HeadChannels(layer=self.paths.names[layer], channels=tuple(places))


def _apart(found: Sequence[GraphAttention]) -> list[GraphAttention]:
    """Return those that share no layer with another one."""
    users: dict[str, int] = {}
    for attention in found:
        for layer in {each.layer for each in attention.makers} | {attention.reader.layer}:
            users[layer] = users.get(layer, 0) + 1
    return [each for each in found if all(users[maker.layer] == 1 for maker in (*each.makers, each.reader))]


def _axis_of_heads(arrived: Sequence[Arrival]) -> tuple[int, tuple[int, ...]]:
    """Return the axis of products that separates channels alike at all inputs, and the head of each position on it."""
    if len({each.numbers.ndim for each in arrived}) != 1:
        raise NotFollowed(_UNKNOWN)
    for axis in range(arrived[0].numbers.ndim - 2):
        found = {_separated(each.numbers, axis) for each in arrived}
        heads = found.pop()
        if heads is not None and not found:
            return axis, heads
    raise NotFollowed("it has a single head, or heads share keys")


def _separated(channels: Tensor, axis: int) -> tuple[int, ...] | None:
    """Return which positions of ``axis`` have the same channels, numbered in order.

    None where all have the same, where sets of channels overlap, or where they differ in size.
    """
    found: dict[tuple[int, ...], int] = {}
    rows = [distinct(channels.select(axis, place)) for place in range(channels.shape[axis])]
    heads = tuple(found.setdefault(row, len(found)) for row in rows)
    every = [channel for row in found for channel in row]
    even = len({len(row) for row in found}) == 1
    return heads if len(found) > 1 and even and len(set(every)) == len(every) else None


def _by_head(channels: Tensor, axis: int, heads: Sequence[int]) -> ByHead:
    first = [heads.index(head) for head in range(len(set(heads)))]
    return tuple(distinct(channels.select(axis, place)) for place in first)
