"""Undocumented names of torch-pruning: its graph as data, and construction of its groups."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch_pruning
from numpy.typing import NDArray
from torch import nn
from torch_pruning import _helpers, ops
from torch_pruning.dependency import index_mapping


def nodes_of(graph: torch_pruning.DependencyGraph) -> Mapping[nn.Module, Any]:
    """Return the nodes of a graph by module; empty if its construction failed before."""
    nodes: Mapping[nn.Module, Any] = getattr(graph, "module2node", {})
    return nodes


def parameter_name(graph: torch_pruning.DependencyGraph, parameter: nn.Parameter) -> str:
    """Return the dotted name of a parameter that belongs to no layer known to torch-pruning."""
    return str(graph._param_to_name[parameter])


def node_name(node: Any) -> str:
    """Return the name of a node in messages; torch-pruning's own for a parameter tells of itself."""
    if isinstance(node.module, nn.Parameter):
        return f"a parameter of shape {' × '.join(map(str, node.module.shape))}"
    return str(node._name or node.type.name.lower())


def is_output(node: Any) -> bool:
    """Return whether a node is the model's output."""
    return node.type is ops.OPTYPE.OUTPUT


class Channels(NamedTuple):
    """Channels on one axis: ascending positions, and for each the corresponding channel of the group's root."""

    positions: NDArray[np.int64]
    roots: NDArray[np.int64]


def map_channels(index_map: Any, channels: Channels) -> Channels:
    """Return the positions of ascending channels after an index map; they ascend again.

    torch-pruning's own maps handle one Python object at a time.

    Raises TypeError for a map that is unknown or loses the root, ValueError if torch-pruning assumed a reshape with
    less than one position per channel.
    """
    positions, roots = channels
    if isinstance(index_map, index_mapping._FlattenIndexMapping):
        return _flattened(channels, index_map._stride, merge=index_map.reverse)
    if isinstance(index_map, (index_mapping._ConcatIndexMapping, index_mapping._SplitIndexMapping)):
        low, high = index_map.offset
        if index_map.reverse == isinstance(index_map, index_mapping._SplitIndexMapping):
            return Channels(positions + low, roots)
        first, last = np.searchsorted(positions, (low, high))
        return Channels(positions[first:last] - low, roots[first:last])
    if isinstance(index_map, index_mapping._SliceIndexMapping):
        if index_map.reverse:
            return Channels(positions * index_map.step + index_map.start, roots)
        offsets = positions - index_map.start
        inside = (offsets >= 0) & (positions < index_map.end) & (offsets % index_map.step == 0)
        return Channels(offsets[inside] // index_map.step, roots[inside])
    raise TypeError(f"torch-pruning's {type(index_map).__name__} is not followed")


def _flattened(channels: Channels, stride: int, *, merge: bool) -> Channels:
    """Expand each channel to ``stride`` positions, or ``merge`` as many positions into one."""
    if stride < 1:
        raise ValueError("a reshape leaves less than one position of each channel")
    positions, roots = channels
    if merge:
        positions = positions // stride
        new = np.ones(len(positions), bool)
        new[1:] = (positions[1:] != positions[:-1]) | (roots[1:] != roots[:-1])
        return Channels(positions[new], roots[new])
    return Channels((positions[:, None] * stride + np.arange(stride)).ravel(), np.repeat(roots, stride))


def map_indices(graph: torch_pruning.DependencyGraph) -> None:
    """Build the index maps of a graph whose construction ended in a division by zero, without those that cause it.

    torch-pruning takes the channels after a reshape from the first layer that reads it. Where only a part is read, as
    after the channel shuffle of ShuffleNet, it gets 0 and divides by it (1.6.1). Without a map, channels after that
    reshape count as those before it; gradients verify that, as for any reshape.
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
    """Return a group, as importances expect it, from (dependency, indices, root indices)."""
    group = torch_pruning.Group()
    for dependency, indices, root_indices in cuts:
        item = _helpers.GroupItem(dep=dependency, idxs=list(indices))
        item.root_idxs = list(root_indices)
        group._group.append(item)
    return group
