"""Pruning against torch-pruning's own, and against zeroed inputs, on real architectures."""

from __future__ import annotations

import copy
from itertools import chain

import pytest
import torch
import torch_pruning
from torch import nn

from senseapp.layers import profile_model, profile_of_trace, watched_pass
from senseapp.spec import PruningConfig
from senseapp.transforms import CompressionRequest
from senseapp.transforms.pruning import PruningCompressor
from senseapp.transforms.pruning_groups import ChannelGroup
from senseapp.transforms.pruning_removal import read_channels, remove_units
from senseapp.transforms.pruning_scores import unit_order
from senseapp.transforms.pruning_search import find_groups
from tests.architectures import ARCHITECTURES, QUICK_ARCHITECTURES, example_input
from tests.pruning_models import footprint, pruning_of

MIXES_CHANNELS = (nn.LayerNorm, nn.GroupNorm)
FEW = 4


def _groups_of(model: nn.Module, x: torch.Tensor) -> dict[str, ChannelGroup]:
    trace = watched_pass(model, x)
    profiles = {layer.name: layer for layer in profile_of_trace(model, x, trace).layers}
    return find_groups(model, profiles, x, trace, 0).groups


def _some(groups: list[ChannelGroup]) -> list[ChannelGroup]:
    """Return a few groups of plain channels spread over the depth of the network."""
    plain = [group for group in groups if not group.attention]
    return plain[:: max(len(plain) // FEW, 1)][:FEW]


@pytest.mark.parametrize("name", QUICK_ARCHITECTURES)
def test_it_equals_a_clone_that_torch_pruning_prunes(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, x = architecture.build(), example_input(architecture)
    for group in _some(list(_groups_of(model, x).values())):
        units = unit_order(PruningConfig(), group, 0)[: max(len(group.units) // 3, 1)]
        root = group.graph.names[group.cuts[0].layer]
        clone = copy.deepcopy(model)
        theirs = torch_pruning.DependencyGraph().build_dependency(clone, x, verbose=False)
        module = clone.get_submodule(root)
        prune = theirs.get_pruner_of_module(module).prune_out_channels
        theirs.get_pruning_group(module, prune, sorted(group.channels(units))).prune()
        ours = copy.deepcopy(model)
        remove_units([(_groups_of(ours, x)[group.members[0]], units)])
        with torch.no_grad():
            assert torch.equal(ours(x), clone(x)), group.members


@pytest.mark.parametrize("name", [n for n in QUICK_ARCHITECTURES if n not in ("efficientnet_gn", "convnext_atto")])
def test_removal_equals_readers_that_ignore_the_channels(name: str) -> None:
    """Without a norm over channels in between, a removed channel is one that every reader multiplies by zero."""
    architecture = ARCHITECTURES[name]
    model, x = architecture.build(), example_input(architecture)
    compressor = pruning_of(model, x)
    groups = _groups_of(model, x)
    independent = {
        layer: group
        for layer, group in groups.items()
        if not any(isinstance(cut.module, MIXES_CHANNELS) for cut in group.cuts)
    }
    targets = [target for target in compressor.targets if target.layer in independent]
    for target in targets[:: max(len(targets) // FEW, 1)][:FEW]:
        with torch.no_grad(), compressor.compress(target, 0.5):
            pruned = model(x)
        clone = copy.deepcopy(model)
        group = independent[target.layer]
        units = unit_order(PruningConfig(), group, 0)[: len(group.units) // 2]
        for reader, positions in read_channels(group, units).items():
            _ignore(clone.get_submodule(reader), positions)
        with torch.no_grad():
            torch.testing.assert_close(pruned, clone(x), rtol=1e-3, atol=1e-4, msg=str(target.members))


def _ignore(reader: nn.Module, positions: tuple[int, ...]) -> None:
    def zero(module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        changed = args[0].clone()
        changed.movedim(-1 if isinstance(module, nn.Linear) else 1, 0)[list(positions)] = 0.0
        return (changed,)

    reader.register_forward_pre_hook(zero)


@pytest.mark.parametrize("name", QUICK_ARCHITECTURES)
def test_a_pass_of_one_image_that_was_watched_before_finds_the_same_groups(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, x = architecture.build(), example_input(architecture)
    layers = profile_model(model, x).layers
    alone, given = (
        PruningCompressor(
            PruningConfig(), CompressionRequest(model=model, layers=layers, calibration=(x,), trace=trace)
        )
        for trace in (None, watched_pass(model, x[:1]))
    )
    assert given.targets == alone.targets
    assert given.not_applicable == alone.not_applicable
    for target in given.targets:
        assert given.removed_inputs(target, 0.5)[0] == alone.removed_inputs(target, 0.5)[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_undo_leaves_every_architecture_identical(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, x = architecture.build(), example_input(architecture)
    with torch.no_grad():
        baseline = model(x)
    state, values = footprint(model), {key: tensor.clone() for key, tensor in model.state_dict().items()}
    profile = profile_model(model, x)
    compressor = pruning_of(model, x)
    assert footprint(model) == state
    assert compressor.targets
    members = list(chain.from_iterable(target.members for target in compressor.targets))
    assert sorted([*members, *compressor.not_applicable]) == sorted(layer.name for layer in profile.layers)
    before = _num_weights(model)
    for target in compressor.targets:
        with compressor.compress(target, 0.5) as applied:
            assert _num_weights(model) == before - applied.removed_params
    assert footprint(model) == state
    assert all(torch.equal(tensor, values[key]) for key, tensor in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model(x), baseline)


def _num_weights(model: nn.Module) -> int:
    layers = (module for module in model.modules() if isinstance(module, nn.modules.conv._ConvNd | nn.Linear))
    return sum(layer.weight.numel() for layer in layers)
