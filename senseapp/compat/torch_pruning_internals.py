"""Undocumented names of torch-pruning: its graph as data, and its groups put together by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch_pruning
from torch import nn
from torch_pruning import _helpers, ops
from torch_pruning.dependency import index_mapping


def nodes_of(graph: torch_pruning.DependencyGraph) -> Mapping[nn.Module, Any]:
    """Return the nodes of a graph by module; empty where its construction did not get that far."""
    nodes: Mapping[nn.Module, Any] = getattr(graph, "module2node", {})
    return nodes


def parameter_name(graph: torch_pruning.DependencyGraph, parameter: nn.Parameter) -> str:
    """Return the dotted name of a parameter that belongs to no layer known to torch-pruning."""
    return str(graph._param_to_name[parameter])


def node_name(node: Any) -> str:
    """Return what a node is called in messages."""
    return str(node._name or node.type.name.lower())


def is_output(node: Any) -> bool:
    """Tell whether a node stands for the model's output."""
    return node.type is ops.OPTYPE.OUTPUT


def starting_indices(channels: Iterable[int]) -> list[Any]:
    """Return channels of a group's root in the form in which index maps take them along: ``idx`` and ``root_idx``."""
    return [_helpers._HybridIndex(idx=channel, root_idx=channel) for channel in channels]


def map_indices(graph: torch_pruning.DependencyGraph) -> None:
    """Make the index maps of a graph whose construction ended in a division by zero, all but those that divide by it.

    torch-pruning takes the channels after a reshape from the first layer that reads it. Where only a part is read, as
    behind the channel shuffle of ShuffleNet, it arrives at 0 and divides by that (1.6.0). Without a map, channels
    behind that reshape count as those before it; whether that is true is checked by gradients, as for any reshape.
    """
    updates = {
        ops.OPTYPE.CONCAT: index_mapping.update_concat_index_mapping,
        ops.OPTYPE.SPLIT: index_mapping.update_split_index_mapping,
        ops.OPTYPE.RESHAPE: index_mapping.update_reshape_index_mapping,
        ops.OPTYPE.UNBIND: index_mapping.update_unbind_index_mapping,
        ops.OPTYPE.EXPAND: index_mapping.update_expand_index_mapping,
        ops.OPTYPE.SLICE: index_mapping.update_slice_index_mapping,
    }
    for node in nodes_of(graph).values():
        with suppress(ZeroDivisionError):
            updates.get(node.type, lambda *_: None)(graph, node)


def group_of(cuts: Iterable[tuple[Any, Sequence[int], Sequence[int]]]) -> torch_pruning.Group:
    """Return a group, as importances take it, of (dependency, indices, root indices)."""
    group = torch_pruning.Group()
    for dependency, indices, root_indices in cuts:
        item = _helpers.GroupItem(dep=dependency, idxs=list(indices))
        item.root_idxs = list(root_indices)
        group._group.append(item)
    return group
