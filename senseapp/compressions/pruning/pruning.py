"""Structural pruning: output channels or attention heads are removed with all coupled tensors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from senseapp.compat.torch_internals import restored
from senseapp.compressions import PruningConfig
from senseapp.compressions.base import Applied, CompressionRequest, Target, ordinary_tensors
from senseapp.compressions.obs import InputMoments
from senseapp.compressions.pruning.groups import ChannelGroup, is_layer, modules_of, positions_of, reading_cuts
from senseapp.compressions.pruning.reconstruction import least_error_order, reading_layers
from senseapp.compressions.pruning.removal import Removal, kept_channels, remove_units
from senseapp.compressions.pruning.search import find_groups, unit_order
from senseapp.core.errors import InvalidDataset, InvalidSchedule, MeasurementFailed, UnsupportedModel, first_line_of
from senseapp.descriptions.levels import whole_units
from senseapp.networks.profile import profile_model, watched_pass
from senseapp.networks.trace import EXAMPLE_IMAGES
from senseapp.records.profile import CoupledAxis, CoupledGroup, LayerProfile


class PruningCompressor:
    """A :class:`~senseapp.compressions.base.ChannelCompressor` that removes channels and restores them.

    torch-pruning's graph is built once. A prune sets new, smaller parameters in the touched modules and the undo
    restores the old ones, so nothing is cloned and the graph stays valid.
    """

    def __init__(self, config: PruningConfig, request: CompressionRequest) -> None:
        if not request.calibration:
            raise InvalidDataset("Pruning follows one image through the network to see what is coupled, got none.")
        self._config, self._model, self._seed = config, request.model, request.seed
        with torch.inference_mode(False):
            if not isinstance(request.calibration[0], Tensor):
                raise UnsupportedModel(
                    "Channels are removed from models that take one tensor, and this one takes several. Give it a "
                    "forward with one argument, or choose another compression."
                )
            example = request.calibration[0][:EXAMPLE_IMAGES].clone()  # an inference tensor cannot be traced
            trace = request.trace or watched_pass(request.model, example)
            profile = profile_model(request.model, example[: trace.batch_size], trace=trace)
            self._other_macs = {name: macs // trace.batch_size for name, macs in trace.other_macs.items()}
            self._profiles = {layer.name: layer for layer in profile.layers}
            groups, reasons = find_groups(
                request.model, self._profiles, example, trace, request.seed, progress=request.progress
            )
        selected = {layer.name for layer in request.layers}
        self._groups = {name: group for name, group in groups.items() if selected.intersection(group.members)}
        self._orders: dict[str, list[int]] = {}
        readers = {name: each for group in self._groups.values() for name, each in reading_layers(group).items()}
        ordered = {name: readers[name] for name in self._profiles if name in readers}
        self._moments = InputMoments(request.model, ordered, request.calibration, seed=request.seed)
        self.targets: Sequence[Target] = tuple(
            Target(
                layer=group.members[0],
                members=group.members,
                modules=modules_of(group),
                group=group.members[0] if len(group.members) > 1 else "",
            )
            for group in self._groups.values()
        )
        self.not_applicable: Mapping[str, str] = {name: why for name, why in reasons.items() if name in selected}

    @contextmanager
    def compress(self, target: Target, level: float) -> Iterator[Applied]:
        """Remove floor(``level`` · n) of the n units (channels, channel sets, heads) of ``target`` inside the block.

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
        """Return the effect of ``level``, and the input channels (indices) that each reader would lose."""
        group, units = self._units(target, level)
        read = read_channels(group, units)
        indices = {name: torch.tensor(positions) for name, positions in read.items()}
        return savings(group, units, self._profiles, self._other_macs), indices

    def couplings(self) -> tuple[CoupledGroup, ...]:
        """Return the axes that shrink with each target."""
        return tuple(coupling_of(group, self._other_macs) for group in self._groups.values())

    def prune(self, ratios: Mapping[str, float]) -> dict[str, Applied]:
        """Prune several groups permanently; see :meth:`~senseapp.compressions.base.ChannelCompressor.prune`."""
        removals = self._removals(ratios)
        applied = {name: savings(*removal, self._profiles, self._other_macs) for name, removal in removals.items()}
        with ordinary_tensors():
            self._remove(list(removals.values()))
        return applied

    def kept_channels(self, ratios: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
        """Return the output channels that :meth:`prune` would keep, by layer or norm that would lose some."""
        return kept_channels(self._removals(ratios).values())

    def _removals(self, ratios: Mapping[str, float]) -> dict[str, Removal]:
        removals: dict[str, Removal] = {}
        for target in self.targets:
            wanted = {ratios[member] for member in target.members if ratios.get(member)}
            if len(wanted) > 1:
                raise InvalidSchedule(
                    "Layers that are coupled take one pruning ratio; "
                    f"{', '.join(target.members)} have {sorted(wanted)}."
                )
            ratio = max(wanted, default=0.0)
            if whole_units(ratio, len(self._groups[target.layer].units)):
                removals[target.layer] = self._units(target, ratio)
        members = {member for target in self.targets for member in target.members}
        for name in (name for name, ratio in ratios.items() if ratio and name not in members):
            reason = self.not_applicable.get(name, "there is no such layer among those selected.")
            raise InvalidSchedule(f"{name} has a pruning ratio of {ratios[name]:g} but cannot be pruned: {reason}")
        return removals

    def _units(self, target: Target, level: float) -> Removal:
        group = self._groups[target.layer]
        count = whole_units(level, len(group.units))
        if count == 0:
            what = "heads" if group.heads is not None else "steps of channels"
            raise MeasurementFailed(
                f"The layer has only {len(group.units)} {what}, and {100 * level:g} % of them is less than one; choose "
                f"a level of at least {100 / len(group.units):.3g} %."
            )
        if target.layer not in self._orders and self._config.criterion == "least_error":
            with ordinary_tensors():
                self._orders[target.layer] = least_error_order(group, self._moments)
        elif target.layer not in self._orders:
            self._orders[target.layer] = unit_order(self._config, group, self._seed)
        units = self._orders[target.layer][:count]
        _require_remaining(group, units)
        return group, units

    def _remove(self, removals: Sequence[Removal]) -> None:
        try:
            remove_units(removals)
        except (RuntimeError, IndexError, ValueError, AttributeError, AssertionError) as error:
            raise MeasurementFailed(
                f"torch-pruning could not shrink a module of this group: {first_line_of(error)}."
            ) from error


def _require_remaining(group: ChannelGroup, units: Sequence[int]) -> None:
    """Raise MeasurementFailed if a layer with only some channels of the group, in a concatenation, loses all."""
    graph, channels, most = group.graph, group.channels(units), len(group.cuts[0].indices)
    for cut in group.cuts:
        is_part = is_layer(cut.module) and graph.is_out_cut(cut) and len(cut.indices) < most
        if is_part and len(positions_of(cut, channels)) == graph.width(cut):
            raise MeasurementFailed(
                f"All channels of {graph.names[cut.layer]} are among the {len(channels)} of {most} that would go. "
                "Choose a lower level or another criterion."
            )


def read_channels(group: ChannelGroup, units: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the input channels for the units, by reader."""
    channels = group.channels(units)
    return {group.graph.names[cut.layer]: positions_of(cut, channels) for cut in reading_cuts(group)}


def coupling_of(group: ChannelGroup, other_macs: Mapping[str, int]) -> CoupledGroup:
    """Return the axes that shrink with ``group``, and their shares if all of its units are removed."""
    graph, channels = group.graph, group.channels(range(len(group.units)))
    axes: dict[tuple[str, Literal["out", "in"]], float] = {}
    for cut in (cut for cut in group.cuts if is_layer(cut.module)):
        side: Literal["out", "in"] = "out" if graph.is_out_cut(cut) else "in"
        axis = graph.names[cut.layer], side
        axes[axis] = axes.get(axis, 0.0) + len(positions_of(cut, channels)) / graph.width(cut)
    return CoupledGroup(
        layer=group.members[0],
        num_units=len(group.units),
        axes=tuple(CoupledAxis(layer=layer, axis=axis, share=share) for (layer, axis), share in axes.items()),
        other_macs=_macs_of_heads(group, other_macs),
    )


def _macs_of_heads(group: ChannelGroup, other_macs: Mapping[str, int]) -> int:
    """Return the activation products of all heads of an attention; all heads have equally many."""
    return other_macs.get(group.heads.name, 0) if group.heads is not None else 0


def savings(
    group: ChannelGroup, units: Sequence[int], profiles: Mapping[str, LayerProfile], other_macs: Mapping[str, int]
) -> Applied:
    """Return the savings of removing ``units``: weights of every layer that shrinks, and multiply-accumulates.

    Biases, norms and free parameters are not counted. A layer of (O, I) channels that loses o and i keeps (O − o)(I −
    i) / (O I) of its weights and of its multiply-accumulates.
    """
    graph, channels = group.graph, group.channels(units)
    kept: dict[str, float] = {}
    gone = len(units) / len(group.units)
    removed_params, removed_macs = 0, round(_macs_of_heads(group, other_macs) * gone)
    for cut in (cut for cut in group.cuts if is_layer(cut.module)):
        name = graph.names[cut.layer]
        kept[name] = kept.get(name, 1.0) * (1 - len(positions_of(cut, channels)) / graph.width(cut))
    for name, share in kept.items():
        removed_params += round(profiles[name].num_params * (1 - share))
        removed_macs += round(profiles[name].macs * (1 - share))
    return Applied(achieved_level=gone, removed_params=removed_params, removed_macs=removed_macs)
