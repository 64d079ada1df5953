"""Repair against statistics computed by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from senseapp.layers import profile_model
from senseapp.results import Schedule, ScheduleEntry
from senseapp.spec import QuantizationConfig, SparsityConfig
from senseapp.validation import apply_schedule, configs_for, repair
from senseapp.validation.batch_norm import reestimate_batch_norm
from senseapp.validation.output_correction import correct_outputs

BATCHES = tuple(torch.randn(3, 8, 2, 6, 6, generator=torch.Generator().manual_seed(1)))  # three of (8, 2, 6, 6)


def with_batch_norm() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(80, 4)
    ).eval()


def without_batch_norm() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 16), nn.GELU(), nn.Linear(16, 4))


def test_batch_norm_statistics_are_the_means_over_batches():
    model = with_batch_norm()
    outputs = [model[0](batch).detach() for batch in BATCHES]  # (8, 5, 4, 4) each
    means = torch.stack([output.mean((0, 2, 3)) for output in outputs]).mean(0)
    variances = torch.stack([output.transpose(0, 1).flatten(1).var(1, unbiased=True) for output in outputs]).mean(0)
    assert reestimate_batch_norm(model, BATCHES)
    torch.testing.assert_close(model[1].running_mean, means)
    torch.testing.assert_close(model[1].running_var, variances)


def test_it_equals_torchs_own_training_mode():
    model, reference = with_batch_norm(), with_batch_norm()
    reference[1].reset_running_stats()
    reference[1].momentum = None
    reference.train()
    with torch.no_grad():
        for batch in BATCHES:
            reference(batch)
    reestimate_batch_norm(model, BATCHES)
    assert torch.equal(model[1].running_mean, reference[1].running_mean)
    assert torch.equal(model[1].running_var, reference[1].running_var)


def test_flags_momenta_and_counters_come_back():
    model = with_batch_norm()
    model[1].momentum, model[1].num_batches_tracked = 0.3, torch.tensor(7)
    reestimate_batch_norm(model, BATCHES)
    assert (model[1].momentum, model[1].training, int(model[1].num_batches_tracked)) == (0.3, False, 7)
    assert not any(module.training for module in model.modules())


def test_everything_comes_back_when_the_model_raises():
    model = with_batch_norm()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError):
        reestimate_batch_norm(model, (BATCHES[0], torch.zeros(2, 3, 6, 6)))
    assert (model[1].momentum, model[1].training) == (0.1, False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_statistics_that_are_not_finite_are_given_up():
    model = with_batch_norm()
    before = copy.deepcopy(model.state_dict())
    assert not reestimate_batch_norm(model, (torch.full((4, 2, 6, 6), torch.nan),))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def channels(output: torch.Tensor) -> torch.Tensor:
    return (output.movedim(1, -1) if output.dim() == 4 else output).flatten(0, -2).double()


def test_each_layers_mean_and_spread_equal_those_before():
    dense = without_batch_norm().eval()
    model = copy.deepcopy(dense).requires_grad_(False)
    for index in (0, 3, 5):
        weight = model[index].weight
        weight[weight.abs() < weight.abs().median()] = 0
    empty = [int((model[index].weight == 0).sum()) for index in (0, 3, 5)]
    layers = profile_model(dense, BATCHES[0][:1]).layers
    assert correct_outputs(model, dense, BATCHES, layers) == ["0", "3", "5"]
    images = torch.cat(BATCHES)
    for stop in (1, 4, 6):
        wanted, found = channels(dense[:stop](images)), channels(model[:stop](images))
        torch.testing.assert_close(found.mean(0), wanted.mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.std(0), wanted.std(0), atol=1e-5, rtol=1e-3)
    assert [int((model[index].weight == 0).sum()) for index in (0, 3, 5)] == empty


def test_a_dead_channel_gets_the_old_mean_and_no_scale():
    dense = nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).eval()
    model = copy.deepcopy(dense).requires_grad_(False)
    model[1].weight[1] = 0
    correct_outputs(model, dense, BATCHES, profile_model(dense, BATCHES[0][:1]).layers)
    images = torch.cat(BATCHES)
    torch.testing.assert_close(model(images)[:, 1].mean(), dense(images)[:, 1].mean())
    assert not model[1].weight[1].any()


def test_layers_without_a_bias_are_left_out():
    dense = nn.Sequential(nn.Flatten(), nn.Linear(72, 3, bias=False)).eval()
    model = copy.deepcopy(dense).requires_grad_(False)
    assert correct_outputs(model, dense, BATCHES, profile_model(dense, BATCHES[0][:1]).layers) == []


@pytest.mark.parametrize(
    ("granularity", "num_grids"),
    [("channel", 16), ("tensor", 1)],
)
def test_quantized_weights_stay_on_their_grid(granularity, num_grids):
    dense, config = without_batch_norm().eval(), QuantizationConfig(granularity=granularity)
    entry = ScheduleEntry(layer="3", members=("3",), compression="quantization", level=3)
    schedule = Schedule(model="net", method="manual", entries=(entry,))
    profile = profile_model(dense, BATCHES[0][:1])
    applied = apply_schedule(dense, schedule, profile=profile, configs=configs_for(config), calibration=BATCHES, seed=0)
    bias = applied.model[3].bias.clone()
    notes = repair(applied, dense, BATCHES, config=config)
    assert "Outputs of 1 layers were corrected" in notes[0]
    assert not torch.equal(applied.model[3].bias, bias)
    rows = applied.model[3].weight if num_grids == 16 else applied.model[3].weight.flatten()[None]
    for row in rows:
        levels = row.abs().unique()
        steps = levels / levels[levels > 0].min()
        assert len(levels) <= 4
        torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)


def test_one_image_is_too_few():
    dense = with_batch_norm()
    applied = apply_schedule(
        dense,
        Schedule(model="net", method="manual", entries=()),
        profile=profile_model(dense, BATCHES[0][:1]),
        configs=configs_for(SparsityConfig()),
        calibration=BATCHES,
    )
    assert "at least two" in repair(applied, dense, (BATCHES[0][:1],), config=SparsityConfig())[0]
