"""How important each unit of a group is, by torch-pruning's importance classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch_pruning
from torch import Tensor

from senseapp.compat.torch_pruning_internals import group_of
from senseapp.errors import MeasurementFailed
from senseapp.layers.compressible import CONVOLUTIONS
from senseapp.spec import PruningConfig
from senseapp.transforms.criteria import layer_generator
from senseapp.transforms.pruning_graph import Cut
from senseapp.transforms.pruning_groups import ChannelGroup

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

    Its importances size their sum after the first entry, so a BatchNorm over a part must not come first. Its FPGM
    fails on grouped convolutions that read the group; without ``grouped_readers`` they have no say.
    """
    cuts = [cut for cut in group.cuts if grouped_readers or not _is_grouped_reader(group, cut)]
    cuts.sort(key=lambda cut: -len(set(cut.root_indices)))
    return group_of((cut.dependency, cut.indices, cut.root_indices) for cut in cuts)


def _is_grouped_reader(group: ChannelGroup, cut: Cut) -> bool:
    return isinstance(cut.module, CONVOLUTIONS) and cut.module.groups > 1 and not group.graph.is_out_cut(cut)
