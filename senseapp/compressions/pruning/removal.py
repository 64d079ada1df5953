"""Removal of chosen channels and heads from a network's modules, for good or as a trial."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import restored
from senseapp.compressions.pruning.graph import ChannelGraph, Cut, left_as_found
from senseapp.compressions.pruning.groups import ChannelGroup, is_layer, modules_of, positions_of
from senseapp.core.errors import first_line_of
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.trace import CallTrace

Removal = tuple[ChannelGroup, Sequence[int]]
"""A group and the indices of its units to remove."""


def remove_units(removals: Iterable[Removal]) -> None:
    """Prune the model of the groups' graph in place; the graph still describes the unpruned model.

    Removals of several groups on one axis (layers that read a concatenation) are made at once, so that positions hold.
    """
    positions: dict[tuple[object, object], tuple[ChannelGraph, Cut, set[int]]] = {}
    for group, units in removals:
        if group.heads is not None:
            group.heads.remove(group.graph.model, units)
        for cut in group.cuts:
            axis = cut.dependency.target, cut.dependency.handler
            _, _, taken = positions.setdefault(axis, (group.graph, cut, set()))
            taken.update(positions_of(cut, group.channels(units)))
    for graph, cut, taken in positions.values():
        owner = graph.owner(cut)
        if owner is not None and taken:
            _shrink(graph, owner, cut, sorted(taken))


def kept_channels(removals: Iterable[Removal]) -> dict[str, tuple[int, ...]]:
    """Return, by layer or norm that will lose output channels, the positions of those kept; call before the removal."""
    kept: dict[str, set[int]] = {}
    for group, units in removals:
        graph, channels = group.graph, group.channels(units)
        for cut in group.cuts:
            if isinstance(cut.module, nn.Module) and cut.module in graph.names and graph.is_out_cut(cut):
                staying = kept.setdefault(graph.names[cut.layer], set(range(graph.width(cut))))
                staying.difference_update(positions_of(cut, channels))
    return {name: tuple(sorted(positions)) for name, positions in kept.items()}


def _shrink(graph: ChannelGraph, owner: nn.Module, cut: Cut, positions: list[int]) -> None:
    """Shrink one module or free parameter by torch-pruning, and also the attributes that it misses."""
    before = dict(owner.named_parameters(recurse=False))
    width = graph.width(cut)
    if isinstance(cut.module, nn.Parameter):
        name = graph.parameter_name(cut.module).rpartition(".")[2]
        setattr(owner, name, cut.dependency(positions))
        _write_sizes(owner, width, width - len(positions))
    else:
        cut.dependency(positions)
        if is_layer(owner) and graph.is_out_cut(cut):
            _shrink_gains(owner, width, positions)
    for name, old in before.items():
        _take_after(owner, name, old)


def _take_after(owner: nn.Module, name: str, old: nn.Parameter) -> None:
    """Give a shrunken parameter the memory order of the old one, without which each pass would convert it."""
    parameter = owner.get_parameter(name)
    if old.dim() == 4 and not old.is_contiguous() and old.is_contiguous(memory_format=torch.channels_last):
        parameter = nn.Parameter(parameter.detach().contiguous(memory_format=torch.channels_last))
        setattr(owner, name, parameter)
    parameter.requires_grad_(old.requires_grad)


def _write_sizes(owner: nn.Module, width: int, remaining: int) -> None:
    """Write the new width into the shape attribute of a norm (RMSNorm) or a scale."""
    for name in ("normalized_shape", "shape"):
        sizes = getattr(owner, name, None)
        if isinstance(sizes, tuple):
            setattr(owner, name, tuple(remaining if size == width else size for size in sizes))


def _shrink_gains(layer: nn.Module, width: int, positions: list[int]) -> None:
    """Shrink per-output-channel tensors of a layer besides weight and bias (the gain of a scaled convolution)."""
    keep = sorted(set(range(width)) - set(positions))
    for name, parameter in list(layer.named_parameters(recurse=False)):
        if name not in ("weight", "bias") and parameter.shape[:1] == (width,):
            index = torch.tensor(keep, device=parameter.device)
            setattr(layer, name, nn.Parameter(parameter.detach().index_select(0, index)))


def unshrinkable(
    graph: ChannelGraph, groups: Sequence[ChannelGroup], example: Tensor, trace: CallTrace, _seed: int
) -> dict[int, str]:
    """Return, by index into ``groups``, why the network does not run without some of its units.

    torch-pruning does not shrink buffers with one number per channel, frozen norms, or widths that are hard-coded. All
    groups are tried at once, then halves of those that fail, with at most two passes for each group. The first of the
    images ``example``, (N, C, H, W), are those of ``trace``.
    """
    images = example[: trace.batch_size]
    expected = [tensor.shape for tensor in tensors_in(trace.output)]
    found: dict[int, str] = {}
    pending = [range(len(groups))] if groups else []
    with left_as_found(graph.model), torch.no_grad():
        while pending:
            part = pending.pop()
            # Neighbours lose different numbers of units, so that a missed coupling is detected.
            some = [(groups[at], range(1 + at % max(1, len(groups[at].units) // 2))) for at in part]
            fault = _fault(some, images, expected)
            if fault and len(part) == 1:
                found[part[0]] = fault
            elif fault:
                pending += [part[: len(part) // 2], part[len(part) // 2 :]]
    return found


def _fault(removals: Sequence[Removal], images: Tensor, expected: Sequence[torch.Size]) -> str:
    """Return why the network fails without these units, in a sentence; empty if it runs."""
    model = removals[0][0].graph.model
    with restored(model.get_submodule(name) for group, _ in removals for name in modules_of(group)):
        try:
            remove_units(removals)
            found = [tensor.shape for tensor in tensors_in(model(images.clone()))]
        except Exception as error:  # the forward may raise anything
            return f"The network does not run without some of its channels: {first_line_of(error)}."
    return "" if found == expected else "The shape of the network's output would change."
