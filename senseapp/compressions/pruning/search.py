"""The groups of a model whose channels or heads can go, why other layers have none, and how units are ranked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch_pruning
from torch import Tensor, nn

from senseapp.compat.torch_pruning_internals import group_of
from senseapp.compressions import PruningConfig
from senseapp.compressions.base import find_weights
from senseapp.compressions.pruning.graph import ChannelGraph, Cut, Untraceable, mixes_neighbours
from senseapp.compressions.pruning.groups import ChannelGroup, channel_groups, head_groups
from senseapp.compressions.pruning.wiring import miswired
from senseapp.compressions.sparsity.criteria import layer_generator
from senseapp.core.errors import MeasurementFailed
from senseapp.layers.profile import CONVOLUTIONS
from senseapp.layers.trace import CallTrace
from senseapp.records.profile import LayerProfile


def find_groups(
    model: nn.Module, profiles: Mapping[str, LayerProfile], example: torch.Tensor, trace: CallTrace, seed: int
) -> tuple[dict[str, ChannelGroup], dict[str, str]]:
    """Return the prunable groups by first member, in execution order, and by layer why its output channels cannot go.

    ``profiles`` are the layers of ``model`` by name, in execution order; ``example`` are images (N, C, H, W) to follow
    through it, and ``trace`` watched a pass over the first of them. What checks the groups is drawn with ``seed``.
    """
    reasons = _fixed_layers(model, profiles)
    try:
        graph = ChannelGraph(model, example)
    except Untraceable as reason:
        return {}, dict.fromkeys(profiles, str(reason)) | reasons
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
    groups = [*heads, *channels]
    wrong = miswired(graph, groups, example, trace, seed)
    for index, why in wrong.items():
        reasons |= dict.fromkeys(groups[index].members, why)
    sound = {group.members[0]: group for index, group in enumerate(groups) if index not in wrong}
    return {name: sound[name] for name in profiles if name in sound}, reasons


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


IMPORTANCES: dict[str, Callable[[], Callable[[object], Tensor | None]]] = {
    "magnitude": lambda: torch_pruning.importance.MagnitudeImportance(p=2),
    "magnitude_l1": lambda: torch_pruning.importance.MagnitudeImportance(p=1),
    "lamp": torch_pruning.importance.LAMPImportance,
    "fpgm": torch_pruning.importance.FPGMImportance,
    "bn_scale": torch_pruning.importance.BNScaleImportance,
    "random": torch_pruning.importance.RandomImportance,
}


def unit_order(config: PruningConfig, group: ChannelGroup, seed: int) -> list[int]:
    """Return the units of ``group`` from the least to the most important, the mean over a unit's channels.

    Raises:
        MeasurementFailed: the criterion finds nothing to look at in this group.
    """
    importance = IMPORTANCES[config.criterion]()
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad():
        torch.manual_seed(layer_generator(seed, group.members[0]).initial_seed())
        scores = importance(_as_torch_pruning(group, grouped_readers=config.criterion != "fpgm"))
    if scores is None:
        raise MeasurementFailed(
            f"The {config.criterion} criterion finds nothing to rank {group.members[0]} by (it has no BatchNorm). "
            "Choose the magnitude criterion."
        )
    units = torch.tensor(group.units, device=scores.device)  # (units, channels of each)
    order: list[int] = scores[units].mean(1).argsort(stable=True).tolist()
    return order


def _as_torch_pruning(group: ChannelGroup, *, grouped_readers: bool) -> torch_pruning.Group:
    """Return the group in torch-pruning's own form, with the cuts that hold all channels first.

    Its importances size their sum after the first entry, so a BatchNorm over a part must not come first. Its FPGM fails
    on grouped convolutions that read the group; without ``grouped_readers`` they have no say.
    """
    cuts = [cut for cut in group.cuts if grouped_readers or not _is_grouped_reader(group, cut)]
    cuts.sort(key=lambda cut: -len(set(cut.root_indices)))
    return group_of((cut.dependency, cut.indices, cut.root_indices) for cut in cuts)


def _is_grouped_reader(group: ChannelGroup, cut: Cut) -> bool:
    return isinstance(cut.module, CONVOLUTIONS) and cut.module.groups > 1 and not group.graph.is_out_cut(cut)
