"""Structural pruning: output channels or attention heads leave a network, with everything coupled to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from senseapp.compressions import PruningConfig
from senseapp.compressions.base import Applied, CompressionRequest, Target, ordinary_tensors
from senseapp.compressions.pruning.graph import restored
from senseapp.compressions.pruning.groups import ChannelGroup
from senseapp.compressions.pruning.removal import (
    Removal,
    coupling_of,
    kept_channels,
    read_channels,
    remove_units,
    savings,
)
from senseapp.compressions.pruning.search import find_groups, unit_order
from senseapp.compressions.sparsity.sparsity import num_zeroed
from senseapp.core.errors import InvalidDataset, InvalidSchedule, MeasurementFailed, first_line_of
from senseapp.layers.profile import profile_of_trace, watched_pass
from senseapp.records.profile import CoupledGroup

EXAMPLE_IMAGES = 2


class PruningCompressor:
    """A :class:`~senseapp.compressions.base.ChannelCompressor` that removes channels and puts them back.

    torch-pruning's graph is built once. A prune gives the touched modules new, smaller parameters and the undo gives
    them
    the old ones back, so nothing is cloned and the graph stays true.
    """

    def __init__(self, config: PruningConfig, request: CompressionRequest) -> None:
        if not request.calibration:
            raise InvalidDataset("Pruning follows one image through the network to see what is coupled, got none.")
        self._config, self._model, self._seed = config, request.model, request.seed
        with torch.inference_mode(False):
            example = request.calibration[0][:EXAMPLE_IMAGES].clone()  # an inference tensor cannot be traced
            trace = request.trace or watched_pass(request.model, example)
            profile = profile_of_trace(request.model, example[: trace.batch_size], trace)
            self._other_macs = {name: macs // trace.batch_size for name, macs in trace.other_macs.items()}
            self._profiles = {layer.name: layer for layer in profile.layers}
            groups, reasons = find_groups(request.model, self._profiles, example, trace, request.seed)
        selected = {layer.name for layer in request.layers}
        self._groups = {name: group for name, group in groups.items() if selected.intersection(group.members)}
        self._orders: dict[str, list[int]] = {}
        self.targets: Sequence[Target] = tuple(self._target(group) for group in self._groups.values())
        self.not_applicable: Mapping[str, str] = {name: why for name, why in reasons.items() if name in selected}

    @contextmanager
    def compress(self, target: Target, level: float) -> Iterator[Applied]:
        """Remove floor(``level`` · n) of the n units (channels, sets of channels, or heads) of ``target`` inside.

        ``removed_params`` and ``removed_macs`` count the weights of every layer that shrinks, the readers included.
        """
        group, units = self._units(target, level)
        applied = savings(group, units, self._profiles, self._other_macs)
        with restored(self._model.get_submodule(name) for name in target.modules):
            with ordinary_tensors():
                self._remove([(group, units)])
            yield applied

    def readers(self, target: Target) -> Sequence[str]:
        """Return the names of the layers that read the channels of ``target``."""
        return tuple(read_channels(self._groups[target.layer], ()))

    def removed_inputs(self, target: Target, level: float) -> tuple[Applied, Mapping[str, Tensor]]:
        """Return what ``level`` would do, and which input channels (indices) each reader would lose."""
        group, units = self._units(target, level)
        read = read_channels(group, units)
        indices = {name: torch.tensor(positions) for name, positions in read.items()}
        return savings(group, units, self._profiles, self._other_macs), indices

    def couplings(self) -> tuple[CoupledGroup, ...]:
        """Return what shrinks with each target."""
        return tuple(coupling_of(group, self._other_macs) for group in self._groups.values())

    def prune(self, ratios: Mapping[str, float]) -> dict[str, Applied]:
        """Prune several groups for good; see :meth:`~senseapp.compressions.base.ChannelCompressor.prune`."""
        removals = self._removals(ratios)
        applied = {name: savings(*removal, self._profiles, self._other_macs) for name, removal in removals.items()}
        with ordinary_tensors():
            self._remove(list(removals.values()))
        return applied

    def kept_channels(self, ratios: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
        """Return which output channels :meth:`prune` would keep, by layer or norm that would lose some."""
        return kept_channels(self._removals(ratios).values())

    def _removals(self, ratios: Mapping[str, float]) -> dict[str, Removal]:
        removals: dict[str, Removal] = {}
        for target in self.targets:
            given = {ratios[member] for member in target.members if ratios.get(member)}
            if len(given) > 1:
                raise InvalidSchedule(
                    f"Layers that are coupled take one pruning ratio; {', '.join(target.members)} have {sorted(given)}."
                )
            ratio = max(given, default=0.0)
            if num_zeroed(ratio, len(self._groups[target.layer].units)):
                removals[target.layer] = self._units(target, ratio)
        self._require_prunable(ratios)
        return removals

    def _require_prunable(self, ratios: Mapping[str, float]) -> None:
        members = {member for target in self.targets for member in target.members}
        for name, ratio in ratios.items():
            if ratio and name not in members:
                reason = self.not_applicable.get(name, "there is no such layer among those selected.")
                raise InvalidSchedule(f"{name} has a pruning ratio of {ratio:g} but cannot be pruned: {reason}")

    def _target(self, group: ChannelGroup) -> Target:
        owners = [group.graph.owner(cut) for cut in group.cuts]
        modules = dict.fromkeys(group.graph.names[owner] for owner in owners if owner is not None)
        if group.attention:
            modules[group.attention] = None
        return Target(
            layer=group.members[0],
            members=group.members,
            modules=tuple(modules),
            group=group.members[0] if len(group.members) > 1 else "",
        )

    def _units(self, target: Target, level: float) -> Removal:
        group = self._groups[target.layer]
        count = num_zeroed(level, len(group.units))
        if count == 0:
            what = "heads" if group.attention else "steps of channels"
            raise MeasurementFailed(
                f"The layer has only {len(group.units)} {what}, and {100 * level:g} % of them is less than one; choose "
                f"a level of at least {100 / len(group.units):.3g} %."
            )
        if target.layer not in self._orders:
            self._orders[target.layer] = unit_order(self._config, group, self._seed)
        return group, self._orders[target.layer][:count]

    def _remove(self, removals: Sequence[Removal]) -> None:
        try:
            remove_units(removals)
        except (RuntimeError, IndexError, ValueError, AttributeError, AssertionError) as error:
            raise MeasurementFailed(
                f"torch-pruning could not shrink a module of this group: {first_line_of(error)}."
            ) from error
