"""Attention heads as the unit of pruning, where the attention's own code allows fewer heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from senseapp.compat.timm_internals import head_layout, nothing_between
from senseapp.transforms.pruning_graph import ChannelGraph
from senseapp.transforms.pruning_groups import ChannelGroup


def head_groups(graph: ChannelGraph) -> list[ChannelGroup]:
    """Return one group per attention module of a known class: its query, key and value layer, and its heads."""
    found = []
    for name, module in graph.model.named_modules():
        known = head_layout(module) is not None and nothing_between(module) and int(module.num_heads) > 1
        if known and module.qkv in graph and module.proj in graph:
            found.append(_head_group(graph, name, module))
    return found


def _head_group(graph: ChannelGraph, name: str, module: Any) -> ChannelGroup:
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
        attention=name,
    )


def remove_heads(module: nn.Module, heads: Sequence[int], num_heads: int) -> None:
    """Take ``heads`` out of what an attention module holds per head; its layers are pruned as channels."""
    layout = head_layout(module)
    assert layout is not None
    keep = [head for head in range(num_heads) if head not in set(heads)]
    for name in layout.widths:
        setattr(module, name, getattr(module, name) // num_heads * len(keep))
    for name, axis in layout.tables.items():
        table = module.get_parameter(name)
        index = torch.tensor(keep, device=table.device)
        setattr(module, name, nn.Parameter(table.index_select(axis, index), requires_grad=table.requires_grad))
    module.num_heads = len(keep)  # type: ignore[assignment]
