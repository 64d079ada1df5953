"""Attention heads as the unit of pruning, where the attention's own code allows fewer heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from senseapp.transforms.pruning_graph import ChannelGraph
from senseapp.transforms.pruning_groups import ChannelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayout:
    """What of an attention module is per head, besides the ``qkv`` and ``proj`` layers.

    Attributes:
        tables: parameter name to the axis that counts heads.
        widths: attributes that hold the width of all heads together.
    """

    tables: dict[str, int]
    widths: tuple[str, ...] = ()


HEAD_LAYOUTS = {
    "timm.layers.attention.Attention": HeadLayout(tables={}, widths=("attn_dim",)),
    "timm.models.swin_transformer.WindowAttention": HeadLayout(tables={"relative_position_bias_table": 1}),
}
"""Attention classes whose forward reads the number of heads and the width of a head from the module, by full name."""


def head_groups(graph: ChannelGraph) -> list[ChannelGroup]:
    """Return one group per attention module of a known class: its query, key and value layer, and its heads."""
    found = []
    for name, module in graph.model.named_modules():
        if _layout(module) is not None and _is_plain(module) and module.qkv in graph and module.proj in graph:
            found.append(_head_group(graph, name, module))
    return found


def _layout(module: nn.Module) -> HeadLayout | None:
    return HEAD_LAYOUTS.get(f"{type(module).__module__}.{type(module).__qualname__}")


def _is_plain(module: Any) -> bool:
    """Return whether nothing between the heads and ``proj`` (a gate, a norm over heads) would have to shrink too."""
    gate, norm = getattr(module, "gate", None), getattr(module, "norm", None)
    return gate is None and (norm is None or isinstance(norm, nn.Identity)) and int(module.num_heads) > 1


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
    layout = _layout(module)
    assert layout is not None
    keep = [head for head in range(num_heads) if head not in set(heads)]
    for name in layout.widths:
        setattr(module, name, getattr(module, name) // num_heads * len(keep))
    for name, axis in layout.tables.items():
        table = module.get_parameter(name)
        index = torch.tensor(keep, device=table.device)
        setattr(module, name, nn.Parameter(table.index_select(axis, index), requires_grad=table.requires_grad))
    module.num_heads = len(keep)  # type: ignore[assignment]
