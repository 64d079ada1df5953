"""Find every group of a model whose channels or heads can go, and say why the other layers have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from senseapp.layers import CallTrace
from senseapp.results import LayerProfile
from senseapp.transforms.pruning_graph import ChannelGraph, Untraceable, mixes_neighbours
from senseapp.transforms.pruning_groups import ChannelGroup, channel_groups
from senseapp.transforms.pruning_heads import head_groups
from senseapp.transforms.pruning_wiring import miswired
from senseapp.transforms.weights import find_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunableGroups:
    """What of a model can be pruned.

    Attributes:
        groups: by first member, in execution order.
        reasons: layer name to the sentence that says why its output channels cannot go.
    """

    groups: dict[str, ChannelGroup]
    reasons: dict[str, str]


def find_groups(
    model: nn.Module, profiles: Mapping[str, LayerProfile], example: torch.Tensor, trace: CallTrace, seed: int
) -> PrunableGroups:
    """Look for groups among the layers of ``profiles`` (in execution order).

    Args:
        model: the network.
        profiles: its layers by name.
        example: images (N, C, H, W) to follow through it.
        trace: a watched pass over the first of them.
        seed: of what is drawn to check the groups.
    """
    reasons = _fixed_layers(model, profiles)
    try:
        graph = ChannelGraph(model, example)
    except Untraceable as reason:
        return PrunableGroups(groups={}, reasons=dict.fromkeys(profiles, str(reason)) | reasons)
    for name in profiles.keys() - reasons.keys():
        module = model.get_submodule(name)
        if mixes_neighbours(module):
            reasons[name] = "It has a single channel: it convolves along the channels of its input."
        elif module not in graph:
            reasons[name] = "torch-pruning sees no call of this layer that the model's output depends on."
    heads = [group for group in head_groups(graph) if not reasons.keys() & set(group.members)]
    taken = {member for group in heads for member in group.members}
    free = [name for name in profiles if name not in reasons]
    channels, left_out = channel_groups(graph, free, reasons, taken)
    reasons |= left_out
    wrong = miswired(graph, [*heads, *channels], example, trace, seed)
    groups = _correctly_wired([*heads, *channels], wrong, reasons)
    order = {name: place for place, name in enumerate(profiles)}
    groups.sort(key=lambda group: order[group.members[0]])
    return PrunableGroups(groups={group.members[0]: group for group in groups}, reasons=reasons)


def _fixed_layers(model: nn.Module, profiles: Mapping[str, LayerProfile]) -> dict[str, str]:
    """Return the layers whose weight cannot be replaced by a smaller one, with the reason."""
    found = find_weights(model, tuple(profiles.values()))
    reasons = dict(found.not_applicable)
    for name, weight in found.weights.items():
        if len(weight.target.modules) > 1:
            reasons[name] = "Its weight is shared with another layer, so neither can lose channels by itself."
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            for layer in (layer for layer in profiles if layer == name or layer.startswith(f"{name}.")):
                reasons[layer] = (
                    "nn.MultiheadAttention requires the width of its heads to equal that of its input, "
                    "so no head can be removed."
                )
    return reasons


def _correctly_wired(
    groups: Sequence[ChannelGroup], wrong: Mapping[int, str], reasons: dict[str, str]
) -> list[ChannelGroup]:
    """Return the groups that are not among the ``wrong`` ones; add the reason for the members of the others."""
    for index, reason in wrong.items():
        reasons.update(dict.fromkeys(groups[index].members, reason))
    return [group for index, group in enumerate(groups) if index not in wrong]
