import copy

import pytest
import torch
from timm.layers import ScaledStdConv2d
from torch import nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import InvalidSchedule
from senseapp.networks.profile import profile_model
from senseapp.reconstruct.apply import apply_schedule, configs_for, sizes_of
from senseapp.records.schedule import Schedule, ScheduleEntry
from tests.quantized import quantized_weight


def a_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    ).eval()


IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(3))


def an_entry(layer: str, compression: str, level: float) -> ScheduleEntry:
    return ScheduleEntry(layer=layer, members=(layer,), compression=compression, level=level)


def a_schedule(*entries: ScheduleEntry) -> Schedule:
    return Schedule(model="net", method="manual", entries=entries)


def applied_to(model: nn.Module, schedule: Schedule, config=None):
    profile = profile_model(model, IMAGES[:2])
    return apply_schedule(
        model, schedule, profile=profile, configs=configs_for(config or SparsityConfig()), calibration=(IMAGES,)
    )


def zeros(tensor: torch.Tensor) -> int:
    return tensor.numel() - int(tensor.count_nonzero())


def test_sparsity_keeps_the_largest_weights():
    model = a_network()
    weight = applied_to(model, a_schedule(an_entry("3", "sparsity", 0.75))).model[3].weight
    kept = weight != 0
    assert torch.equal(weight[kept], model[3].weight[kept])
    assert model[3].weight[kept].abs().min() >= model[3].weight[~kept].abs().max()


def test_the_granularity_of_the_run_is_used():
    weight = (
        applied_to(a_network(), a_schedule(an_entry("3", "sparsity", 0.5)), SparsityConfig(granularity="filter"))
        .model[3]
        .weight
    )
    assert sorted(zeros(row) for row in weight) == [0] * 6 + [72] * 6


def test_quantized_weights_lie_on_the_grid_of_their_bits():
    model = a_network()
    applied = applied_to(model, a_schedule(an_entry("0", "quantization", 4), an_entry("3", "quantization", 2)))
    expected = quantized_weight(
        model[3].weight.detach(), bits=2, number_format="int", granularity="channel", channel_axis=0
    )
    assert torch.equal(applied.model[3].weight, expected)
    assert all(len(row.unique()) <= 15 for row in applied.model[0].weight)
    assert (applied.bits("0"), applied.bits("3"), applied.bits("7")) == (4, 2, 32)


def test_sparsity_and_quantization_of_one_layer_keep_the_zeros():
    applied = applied_to(a_network(), a_schedule(an_entry("3", "quantization", 4), an_entry("3", "sparsity", 0.5)))
    assert zeros(applied.model[3].weight) >= 432
    assert all(len(row.unique()) <= 15 for row in applied.model[3].weight)


def test_pruning_removes_channels_for_good():
    applied = applied_to(a_network(), a_schedule(an_entry("0", "pruning", 0.5)), PruningConfig())
    assert applied.model[0].weight.shape == (4, 1, 3, 3)
    assert applied.model[3].weight.shape == (12, 4, 3, 3)
    assert applied.after.layer("3").num_params == 12 * 4 * 9
    assert applied.model(IMAGES).shape == (6, 5)


def test_rounded_inputs_count_only_while_measuring():
    config = QuantizationConfig(activations=True, observer="minmax")
    applied = applied_to(a_network(), a_schedule(an_entry("3", "quantization", 2)), config)
    plain = applied.model(IMAGES)
    with applied.active():
        rounded = applied.model(IMAGES)
    assert not torch.allclose(plain, rounded)
    assert torch.equal(applied.model(IMAGES), plain)
    assert any("file of weights" in note for note in applied.notes)


def test_the_callers_model_is_untouched():
    model = a_network()
    before = copy.deepcopy(model.state_dict())
    for kind, level in (("sparsity", 0.5), ("quantization", 3), ("pruning", 0.5)):
        applied_to(model, a_schedule(an_entry("0", kind, level)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_a_level_of_less_than_one_weight_is_said():
    applied = applied_to(a_network(), a_schedule(an_entry("0", "sparsity", 0.01)))
    assert applied.reached == ()
    assert "0 was left as it is" in applied.notes[0]


def test_a_schedule_of_another_model_names_the_layers_that_do_not_exist():
    with pytest.raises(InvalidSchedule, match=r"another model.*\(layer1\.0\.conv1, fc\)"):
        applied_to(
            a_network(), a_schedule(an_entry("layer1.0.conv1", "sparsity", 0.5), an_entry("fc", "sparsity", 0.5))
        )


def test_a_layer_that_cannot_be_compressed_is_refused_with_its_reason():
    model = a_network()
    model[3].weight = model[3].weight  # keep; the classifier cannot lose outputs
    with pytest.raises(InvalidSchedule, match=r"7 has a pruning ratio"):
        applied_to(model, a_schedule(an_entry("7", "pruning", 0.4)), PruningConfig())


def test_sizes_are_counted():
    model = a_network()
    applied = applied_to(model, a_schedule(an_entry("3", "sparsity", 0.75), an_entry("7", "quantization", 8)))
    before, after = sizes_of(applied, model)
    assert (before.params, before.weights, before.zeros) == (72 + 8 + 16 + 864 + 12 + 60 + 5, 996, 0)
    assert after.zeros == 648
    assert before.compact_bytes - after.compact_bytes == pytest.approx(864 * 4 - (864 / 8 + 216 * 4) + 60 * 3)
    assert before.macs - after.macs == pytest.approx(0.75 * 864 * 64)
    assert after.average_bits == pytest.approx((936 * 32 + 60 * 8) / 996)
    assert after.figure("params", before) == pytest.approx(648 / 996)
    assert after.figure("bits", before) == after.average_bits


def test_what_was_zero_before_saves_no_macs():
    model = a_network()
    model[0].weight.data[:4] = 0
    applied = applied_to(model, a_schedule(an_entry("3", "sparsity", 0.75), an_entry("7", "quantization", 2)))
    before, after = sizes_of(applied, model)
    assert before.macs == applied.before.macs
    assert before.zeros == 36
    assert after.zeros > 36 + 648  # rounding to two bits makes more
    assert before.macs - after.macs == pytest.approx(0.75 * 864 * 64)


def test_macs_of_a_standardised_weight_are_saved_by_whole_filters_only():
    model = nn.Sequential(ScaledStdConv2d(1, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    whole, filters = (
        sizes_of(applied_to(copy.deepcopy(model), a_schedule(an_entry("0", "sparsity", 0.5)), config), model)
        for config in (SparsityConfig(), SparsityConfig(granularity="filter"))
    )
    for before, after in (whole, filters):
        assert after.figure("params", before) == pytest.approx(36 / 112)
    assert whole[1].figure("macs", whole[0]) == 0
    assert filters[0].macs - filters[1].macs == 64 * 36  # one image has 8 × 8 places; timm pads
