"""Groups of attention heads: of timm's attention modules, and of attention that a graph writes as matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from senseapp.compat.timm_internals import head_layout, nothing_between
from senseapp.compressions.pruning.graph import ChannelGraph
from senseapp.compressions.pruning.groups import ChannelGroup
from senseapp.networks.onnx.attention import GraphAttention


@dataclass(frozen=True, slots=True)
class ModuleHeads:
    """The heads of the attention module ``name``, of a class that is known."""

    name: str
    num_heads: int

    @property
    def modules(self) -> tuple[str, ...]:
        """The module itself."""
        return (self.name,)

    @property
    def products(self) -> tuple[str, ...]:
        """The module itself."""
        return (self.name,)

    def remove(self, model: nn.Module, heads: Sequence[int]) -> None:
        """Remove ``heads`` from the per-head tables and numbers of the module."""
        module = model.get_submodule(self.name)
        layout = head_layout(module)
        assert layout is not None
        keep = [head for head in range(self.num_heads) if head not in set(heads)]
        for name in layout.widths:
            setattr(module, name, getattr(module, name) // self.num_heads * len(keep))
        for name, axis in layout.tables.items():
            table = module.get_parameter(name)
            index = torch.tensor(keep, device=table.device)
            setattr(module, name, nn.Parameter(table.index_select(axis, index), requires_grad=table.requires_grad))
        module.num_heads = len(keep)  # type: ignore[assignment]


def head_groups(graph: ChannelGraph, attentions: Sequence[GraphAttention]) -> list[ChannelGroup]:
    """Return one group per attention whose heads are known: its layers of queries, keys and values, and its heads."""
    found = []
    for name, module in graph.model.named_modules():
        known = head_layout(module) is not None and nothing_between(module) and int(module.num_heads) > 1
        if known and module.qkv in graph and module.proj in graph:
            found.append(_group_of_module(graph, name, module))
    for attention in attentions:
        layers = [graph.model.get_submodule(each.layer) for each in (*attention.makers, attention.reader)]
        if all(layer in graph for layer in layers):
            found.append(_group_of_graph(graph, attention))
    return found


def _group_of_module(graph: ChannelGraph, name: str, module: Any) -> ChannelGroup:
    num_heads, width = int(module.num_heads), module.proj.in_features
    head_dim = width // num_heads
    channels = tuple(range(width))
    return ChannelGroup(
        graph=graph,
        cuts=(
            graph.cut(module.proj, channels, channels, outputs=False),
            graph.cut(module.qkv, tuple(range(3 * width)), channels * 3, outputs=True),
        ),
        units=tuple(tuple(range(head * head_dim, (head + 1) * head_dim)) for head in range(num_heads)),
        members=(f"{name}.qkv" if name else "qkv",),
        heads=ModuleHeads(name, num_heads),
    )


def _group_of_graph(graph: ChannelGraph, attention: GraphAttention) -> ChannelGroup:
    """Return the heads of ``attention``; the root's channels are the input channels of the layer that reads them."""
    read = attention.reader.channels
    channels = tuple(sorted(chain.from_iterable(read)))
    roots: dict[str, dict[int, int]] = {}
    for maker in attention.makers:
        own = roots.setdefault(maker.layer, {})
        for of_head, read_by_head in zip(maker.channels, read, strict=True):
            # Keys may be narrower than values.
            own |= {channel: read_by_head[place % len(read_by_head)] for place, channel in enumerate(of_head)}
    cuts = [graph.cut(graph.model.get_submodule(attention.reader.layer), channels, channels, outputs=False)]
    for layer, root_of in roots.items():
        positions = tuple(sorted(root_of))
        matching = tuple(root_of[position] for position in positions)
        cuts.append(graph.cut(graph.model.get_submodule(layer), positions, matching, outputs=True))
    return ChannelGroup(graph=graph, cuts=tuple(cuts), units=read, members=tuple(roots), heads=attention)
