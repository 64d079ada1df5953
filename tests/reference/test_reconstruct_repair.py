"""Repair against moments computed by hand, and against nothing at all where nothing was done."""

import copy

import pytest
import timm
import torch
import torchvision
from timm.layers import convert_sync_batchnorm, freeze_batch_norm_2d
from torch import nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.networks.profile import profile_model
from senseapp.reconstruct.apply import apply_schedule, configs_for
from senseapp.reconstruct.repair import Matching, Reference, matching_of
from senseapp.reconstruct.repair_sites import batch_norms, correctable_layers
from senseapp.records.schedule import Schedule, ScheduleEntry
from tests.architectures import each_of
from tests.cases import first_of

BATCHES = tuple(torch.randn(3, 8, 2, 6, 6, generator=torch.Generator().manual_seed(1)))  # three of (8, 2, 6, 6)
IMAGES = torch.cat(BATCHES)


def with_batch_norm() -> nn.Sequential:
    torch.manual_seed(2)
    network = nn.Sequential(
        *(nn.Conv2d(2, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 6, 3, bias=False)),
        *(nn.BatchNorm2d(6, affine=False), nn.Dropout(0.5), nn.Flatten(), nn.Linear(24, 4)),
    )
    return with_statistics(network)


def without_batch_norm() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 16), nn.GELU(), nn.Linear(16, 4)
    ).eval()


def with_statistics(network: nn.Module) -> nn.Module:
    """Give every norm statistics of its own, as training would."""
    for norm in batch_norms(network).values():
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 2)
    return network.eval().requires_grad_(False)


def halved(network: nn.Module) -> nn.Module:
    """Return a copy without the smaller half of each weight."""
    sparse = copy.deepcopy(network).requires_grad_(False)
    for module in sparse.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight[module.weight.abs() < module.weight.abs().median()] = 0
    return sparse


def state_of(network: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(network.state_dict())


def same(network: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def channels(output: torch.Tensor) -> torch.Tensor:
    return (output.movedim(1, -1) if output.dim() == 4 else output).flatten(0, -2).double()


ARCHITECTURES = {
    "resnet": (timm, "resnet10t"),
    "mobilenetv3": (timm, "mobilenetv3_small_050"),
    "efficientnet": (timm, "tf_efficientnet_lite0"),
    "regnet": (timm, "regnetx_002"),
    "densenet": (timm, "densenet121"),
    "levit": (timm, "levit_128s"),
    "convnext": (timm, "convnext_atto"),
    "vit": (timm, "vit_tiny_patch16_224"),
    "nfnet": (timm, "nfnet_l0"),
    "shufflenet": (torchvision.models, "shufflenet_v2_x0_5"),
    "squeezenet": (torchvision.models, "squeezenet1_1"),
}


KEPT = ("resnet", "levit", "squeezenet")  # norms after layers, over tokens, and none


@each_of(ARCHITECTURES, kept=KEPT)
def test_a_repair_of_the_uncompressed_network_changes_no_bit(name):
    torch.manual_seed(0)
    library, model = ARCHITECTURES[name]
    make = library.create_model if library is timm else library.get_model
    network = with_statistics(make(model, num_classes=7))
    side = 224 if name in ("vit", "levit") else 64
    images = torch.randn(5, 3, side, side)
    before = state_of(network)
    matching = Matching(
        copy.deepcopy(network), Reference(network, (images[:3], images[3:])), layers=set(correctable_layers(network))
    )
    assert matching.fit()
    assert (len(matching.norms), matching.skipped) == (len(batch_norms(network)), ())
    assert matching.norms or matching.layers
    assert same(matching._model, before)
    assert same(network, before)


@pytest.mark.parametrize("convert", first_of([freeze_batch_norm_2d, convert_sync_batchnorm]))
def test_frozen_and_synchronised_norms_are_matched_too(convert):
    dense = convert(with_statistics(timm.create_model("resnet10t", num_classes=3)))
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    same_network = Matching(copy.deepcopy(dense), Reference(dense, [images]))
    before = state_of(dense)
    assert same_network.fit()
    assert len(same_network.norms) == 14
    assert same(same_network._model, before)
    sparse = halved(dense)
    assert Matching(sparse, Reference(dense, [images])).fit()
    assert not same(sparse, state_of(halved(dense)))


@pytest.fixture
def many_images(monkeypatch):
    """Let each channel's own ratio count in full, as it nearly does with many images."""
    monkeypatch.setattr("senseapp.reconstruct.repair_sites._PRIOR_IMAGES", 0)


@pytest.mark.usefixtures("many_images")
@pytest.mark.parametrize("parts", [1, 3])
def test_each_norms_output_keeps_its_mean_and_spread(parts):
    dense = with_batch_norm()
    model = halved(dense)
    assert Matching(model, Reference(dense, IMAGES.chunk(parts))).fit()
    for stop in (2, 5):
        wanted, found = channels(dense[:stop](IMAGES)), channels(model[:stop](IMAGES))
        exact = {"atol": 1e-5, "rtol": 1e-4} if parts == 1 else {"atol": 0.02, "rtol": 0.02}
        torch.testing.assert_close(found.mean(0), wanted.mean(0), **exact)
        torch.testing.assert_close(found.std(0), wanted.std(0), **exact)


@pytest.mark.parametrize("prior", [0, 64])
def test_the_formula_of_one_norm(prior, monkeypatch):
    monkeypatch.setattr("senseapp.reconstruct.repair_sites._PRIOR_IMAGES", prior)
    dense = with_batch_norm()
    model, norm = halved(dense), dense[1]
    Matching(model, Reference(dense, [IMAGES])).fit()
    given, had = channels(dense[:1](IMAGES)), channels(halved(dense)[:1](IMAGES))
    ratio = had.var(0, unbiased=False) / given.var(0, unbiased=False)
    own = 24 / (24 + prior)
    ratio = ratio**own * ratio.log().mean().exp() ** (1 - own)
    variance = (norm.running_var.double() + norm.eps) * ratio - norm.eps
    mean = had.mean(0) - (given.mean(0) - norm.running_mean.double()) * ratio.sqrt()
    torch.testing.assert_close(model[1].running_var.double(), variance, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model[1].running_mean.double(), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("many_images")
def test_a_dead_channel_keeps_its_mean_and_a_ratio_within_bounds():
    dense = with_batch_norm()
    model = copy.deepcopy(dense)
    model[0].weight[1] = 0
    assert Matching(model, Reference(dense, [IMAGES])).fit()
    wanted, found = channels(dense[:2](IMAGES)).mean(0), channels(model[:2](IMAGES)).mean(0)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        model[1].running_var[1] + model[1].eps, (dense[1].running_var[1] + dense[1].eps) / 16, rtol=1e-5, atol=0
    )


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.unused = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.instance = nn.InstanceNorm2d(4, track_running_stats=True)
        self.pooled = nn.BatchNorm1d(4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.pooled(self.instance(self.norm(self.second(self.norm(self.first(images)).relu()))).mean((2, 3)))


@pytest.mark.usefixtures("many_images")
def test_a_norm_that_is_called_twice_matches_both_calls_together():
    torch.manual_seed(3)
    dense = with_statistics(CalledTwice())
    model = halved(dense)
    matching = Matching(model, Reference(dense, [IMAGES]))
    assert matching.fit()
    assert matching.norms == ("norm", "pooled")
    assert same(model.unused, state_of(dense.unused))
    assert same(model.instance, state_of(dense.instance))
    seen: dict[str, list[torch.Tensor]] = {"dense": [], "model": []}
    for name, network in {"dense": dense, "model": model}.items():
        network.norm.register_forward_hook(lambda _m, _i, output, name=name: seen[name].append(channels(output)))
        network(IMAGES)
    wanted, found = (torch.cat(seen[name]) for name in ("dense", "model"))
    torch.testing.assert_close(found.mean(0), wanted.mean(0), atol=0.02, rtol=0.02)
    torch.testing.assert_close(found.std(0), wanted.std(0), atol=0.02, rtol=0.02)


def test_everything_comes_back_when_activations_are_not_finite():
    dense = with_batch_norm()
    model = copy.deepcopy(dense)
    model[0].weight[0] = torch.inf
    before = state_of(model)
    assert not Matching(model, Reference(dense, BATCHES)).fit()
    assert same(model, before)


@pytest.mark.usefixtures("many_images")
def test_each_layers_mean_and_spread_equal_those_before():
    dense = without_batch_norm()
    model = halved(dense)
    empty = [int((model[index].weight == 0).sum()) for index in (0, 3, 5)]
    matching = Matching(model, Reference(dense, [IMAGES]), layers=("0", "3", "5"))
    assert matching.fit()
    assert matching.layers == ("0", "3", "5")
    for stop in (1, 4, 6):
        wanted, found = channels(dense[:stop](IMAGES)), channels(model[:stop](IMAGES))
        torch.testing.assert_close(found.mean(0), wanted.mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.std(0), wanted.std(0), atol=1e-5, rtol=1e-3)
    assert [int((model[index].weight == 0).sum()) for index in (0, 3, 5)] == empty
    matching.undo()
    assert same(model, state_of(halved(dense)))


def test_a_dead_channel_of_a_layer_gets_the_old_mean_and_no_scale():
    dense = nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).eval()
    model = copy.deepcopy(dense).requires_grad_(False)
    model[1].weight[1] = 0
    Matching(model, Reference(dense, BATCHES), layers=("1",)).fit()
    torch.testing.assert_close(model(IMAGES)[:, 1].mean(), dense(IMAGES)[:, 1].mean())
    assert not model[1].weight[1].any()


def test_a_standardised_weight_is_not_scaled_and_its_mean_matches():
    torch.manual_seed(0)
    dense = nn.Sequential(timm.layers.ScaledStdConv2d(2, 5, 3)).eval()
    model = halved(dense)
    model[0].weight.copy_(dense[0].weight.where(dense[0].weight.abs() > 0.1, 0))
    weight = model[0].weight.clone()
    Matching(model, Reference(dense, [IMAGES]), layers=("0",)).fit()
    assert torch.equal(model[0].weight, weight)
    torch.testing.assert_close(channels(model(IMAGES)).mean(0), channels(dense(IMAGES)).mean(0), atol=1e-5, rtol=1e-4)


def test_layers_without_a_bias_or_with_a_shared_one_are_left_out():
    dense = nn.Sequential(nn.Flatten(), nn.Linear(72, 72, bias=False), nn.Linear(72, 72), nn.Linear(72, 72)).eval()
    dense[3].bias = dense[2].bias
    assert correctable_layers(dense) == {}


@pytest.mark.parametrize(("granularity", "num_grids"), [("channel", 16), ("tensor", 1)])
def test_quantized_weights_stay_on_their_grid(granularity, num_grids):
    dense, config = without_batch_norm(), QuantizationConfig(granularity=granularity)
    entry = ScheduleEntry(layer="3", members=("3",), compression="quantization", level=3)
    schedule = Schedule(model="net", method="manual", entries=(entry,))
    profile = profile_model(dense, BATCHES[0][:1])
    applied = apply_schedule(dense, schedule, profile=profile, configs=configs_for(config), calibration=BATCHES, seed=0)
    bias = applied.model[3].bias.clone()
    notes = repair(applied, dense, BATCHES, config=config)
    assert "matched the outputs of 1 compressed layer to" in notes[0]
    assert not torch.equal(applied.model[3].bias, bias)
    rows = applied.model[3].weight if num_grids == 16 else applied.model[3].weight.flatten()[None]
    for row in rows:
        levels = row.abs().unique()
        steps = levels / levels[levels > 0].min()
        assert len(levels) <= 4
        torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)


def applied_to(dense: nn.Module, images: torch.Tensor, entries: tuple[ScheduleEntry, ...]):
    return apply_schedule(
        dense,
        Schedule(model="net", method="manual", entries=entries),
        profile=profile_model(dense, images[:1]),
        configs=configs_for(SparsityConfig()),
        calibration=(images,),
    )


def repair(applied, dense, batches, *, config):
    matching = matching_of(applied, Reference(dense, batches), scale=config.scales_per_channel)
    with applied.active():
        return matching.sentences(fitted=matching.fit())


def pruned_entry(layer: str, level: float) -> ScheduleEntry:
    return ScheduleEntry(layer=layer, members=(layer,), compression="pruning", level=level)


@pytest.mark.parametrize("make", [with_batch_norm, without_batch_norm])
def test_pruning_channels_that_do_nothing_and_repairing_changes_nothing(make):
    dense = make().requires_grad_(False)
    dead = [0, 3]  # not the last ones, so that the others move
    dense[0].weight[dead] = 0
    if make is with_batch_norm:
        dense[1].weight[dead], dense[1].bias[dead] = 0, 0
    else:
        dense[0].bias[dead] = 0
    applied = applied_to(dense, IMAGES, (pruned_entry("0", 0.4),))
    assert applied.kept_channels["0"] == (1, 2, 4)
    (said,) = repair(applied, dense, BATCHES, config=PruningConfig())
    has_norm = make is with_batch_norm
    assert ("matched the mean and spread of values in 2 normalisation layers" in said) == has_norm, said
    torch.testing.assert_close(applied.model(IMAGES), dense(IMAGES), atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("many_images")
@pytest.mark.parametrize(("make", "stop"), [(with_batch_norm, 5), (without_batch_norm, 4)])
def test_what_reads_pruned_channels_keeps_its_mean_and_spread(make, stop):
    dense = make()
    applied = applied_to(dense, IMAGES, (pruned_entry("0", 0.4),))
    notes = repair(applied, dense, (IMAGES,), config=PruningConfig())
    assert "left as they were" not in " ".join(notes)
    wanted, found = channels(dense[:stop](IMAGES)), channels(applied.model[:stop](IMAGES))
    torch.testing.assert_close(found.mean(0), wanted.mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.std(0), wanted.std(0), atol=1e-5, rtol=1e-3)
