"""What must hold for any network: replay equals whole passes, and pruning equals torch-pruning and can be undone.

Each architecture is built and watched once for all of these.
"""

import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import pytest
import torch
import torch_pruning
from torch import Tensor, nn

from senseapp.compressions import PruningConfig
from senseapp.compressions.base import CompressionRequest
from senseapp.compressions.pruning.groups import ChannelGroup
from senseapp.compressions.pruning.pruning import PruningCompressor, read_channels, remove_units
from senseapp.compressions.pruning.search import find_groups, unit_order
from senseapp.networks.profile import profile_model, watched_pass
from senseapp.networks.trace import CallTrace
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import SensitivitySpec
from tests.architectures import ARCHITECTURES, NUM_CLASSES, QUICK_ARCHITECTURES, each_of, example_input
from tests.plain_loop import assert_equals_plain_loop, assert_same, labelled, measured, sampled, sweep_of
from tests.pruning_models import footprint

FEW = 4
MIXES_CHANNELS = (nn.LayerNorm, nn.GroupNorm)
NORM_OVER_CHANNELS = ("efficientnet_gn", "convnext_atto")
NOTHING_TO_PRUNE = ("eva02_tiny",)
"""The weight of qkv is read outside of its layer, and heads are joined to the width of the input; a gated MLP is all
else. Without channels of the residual stream the network does not run."""
COUPLED = (*("resnet18", "densenet121", "mobilenetv3_small_050", "vit_tiny", "mixer"), *NORM_OVER_CHANNELS[1:])
"""One for each way in which channels are mostly coupled: sums, concatenations, depthwise, heads, tokens, norms."""
SOME = ("resnet18", "densenet121", "vit_tiny")  # for what depends less on the network
QUICK = sorted(QUICK_ARCHITECTURES, key=lambda name: name in NORM_OVER_CHANNELS)
ALL = sorted(ARCHITECTURES, key=lambda name: QUICK.index(name) if name in QUICK else len(QUICK))
"""Lists with equal beginnings: pytest keeps tests together whose parameters have the same place in them."""


@dataclass(frozen=True)
class Network:
    """An architecture, and what several tests need to know of it.

    Attributes:
        name: in ``ARCHITECTURES``.
        model: as built; a test leaves it as it was.
        x: two random images, (2, 3, H, W).
        four: four of them.
        trace: of a pass over ``x``.
    """

    name: str
    model: nn.Module
    x: Tensor
    four: Tensor
    trace: CallTrace

    @cached_property
    def profile(self) -> ModelProfile:
        return profile_model(self.model, self.x, trace=self.trace)

    @cached_property
    def groups(self) -> dict[str, ChannelGroup]:
        return groups_of(self.model, self.x, self.trace)

    @cached_property
    def watched_pruner(self) -> PruningCompressor:
        """The pruning compressor over all layers, given what the pass has shown."""
        return self.pruner(self.trace)

    def pruner(self, trace: CallTrace | None) -> PruningCompressor:
        """Return the pruning compressor over all layers, which may be given what a pass has shown."""
        request = CompressionRequest(
            model=self.model, layers=self.profile.layers, calibration=(self.x,), seed=0, trace=trace
        )
        return PruningCompressor(PruningConfig(), request)


def groups_of(model: nn.Module, x: Tensor, trace: CallTrace) -> dict[str, ChannelGroup]:
    profiles = {layer.name: layer for layer in profile_model(model, x, trace=trace).layers}
    return find_groups(model, profiles, x, trace, 0)[0]


@pytest.fixture(scope="module")
def network(request: pytest.FixtureRequest) -> Network:
    architecture = ARCHITECTURES[request.param]
    model, x = architecture.build(), example_input(architecture)
    return Network(request.param, model, x, example_input(architecture, 4), watched_pass(model, x))


def over(names: list[str], kept: tuple[str, ...] = COUPLED) -> pytest.MarkDecorator:
    return each_of(names, "network", kept=kept, indirect=True)


@over(ALL, (*COUPLED, "swin_tiny"))
def test_replay_equals_the_plain_loop(network: Network) -> None:
    """Layers spread over the depth of the network, which must be replayed and not run whole."""
    layers = sampled([layer.name for layer in network.profile.layers if layer.runs])
    sweep = assert_equals_plain_loop(network.model, labelled(network.four, NUM_CLASSES), layers)
    assert sweep.context.replay_obstacle is None


@over(ALL)
def test_undoing_a_prune_leaves_the_network_identical(network: Network) -> None:
    model, x = network.model, network.x
    with torch.no_grad():
        baseline = model(x)
    state, values = footprint(model), {key: tensor.clone() for key, tensor in model.state_dict().items()}
    compressor = network.watched_pruner
    assert footprint(model) == state
    assert bool(compressor.targets) == (network.name not in NOTHING_TO_PRUNE)
    members = list(chain.from_iterable(target.members for target in compressor.targets))
    assert sorted([*members, *compressor.not_applicable]) == sorted(layer.name for layer in network.profile.layers)
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


@over(QUICK, SOME)
def test_replayed_pruning_equals_whole_passes(network: Network) -> None:
    images = labelled(network.four, NUM_CLASSES)
    sweep = sweep_of(network.model, images, SensitivitySpec(compression=PruningConfig(), levels=(0.5,)))
    keep = set(sampled([item.target.layer for item in sweep.planned], 3))
    sweep.planned = [item for item in sweep.planned if item.target.layer in keep]
    values = measured(list(sweep.measure()))
    assert sweep.context.replay_obstacle is None
    assert len(values) == len(keep)
    assert images.labels is not None
    for item in sweep.planned:
        with torch.inference_mode(), sweep.compressor.compress(item.target, 0.5):
            logits = sweep.context.model(images.images)
        assert_same(values[item.target.layer], logits, sweep.baseline.outputs, images.labels)


def _some(groups: list[ChannelGroup]) -> list[ChannelGroup]:
    """Return a few groups of plain channels spread over the depth of the network."""
    plain = [group for group in groups if not group.heads]
    return plain[:: max(len(plain) // FEW, 1)][:FEW]


@over(QUICK, SOME)
def test_pruning_equals_a_clone_that_torch_pruning_prunes(network: Network) -> None:
    model, x = network.model, network.x
    for group in _some(list(network.groups.values())):
        units = unit_order(PruningConfig(), group, 0)[: max(len(group.units) // 3, 1)]
        root = group.graph.names[group.cuts[0].layer]
        clone = copy.deepcopy(model)
        theirs = torch_pruning.DependencyGraph().build_dependency(clone, x, verbose=False)
        module = clone.get_submodule(root)
        prune = theirs.get_pruner_of_module(module).prune_out_channels
        theirs.get_pruning_group(module, prune, sorted(group.channels(units))).prune()
        ours = copy.deepcopy(model)
        remove_units([(groups_of(ours, x, watched_pass(ours, x))[group.members[0]], units)])
        with torch.no_grad():
            assert torch.equal(ours(x), clone(x)), group.members


@over(QUICK[: -len(NORM_OVER_CHANNELS)])
def test_removal_equals_readers_that_ignore_the_channels(network: Network) -> None:
    """Without a norm over channels in between, a removed channel is one that every reader multiplies by zero."""
    model, x = network.model, network.x
    compressor = network.watched_pruner
    independent = {
        layer: group
        for layer, group in network.groups.items()
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


@over(QUICK, SOME)
def test_a_pass_of_one_image_that_was_watched_before_finds_the_same_groups(network: Network) -> None:
    alone, given = (network.pruner(trace) for trace in (None, watched_pass(network.model, network.x[:1])))
    assert given.targets == alone.targets
    assert given.not_applicable == alone.not_applicable
    for target in given.targets:
        assert given.removed_inputs(target, 0.5)[0] == alone.removed_inputs(target, 0.5)[0]
