"""Adapted weights: near the best that can be counted out, on their grid, with their zeros, never delivered worse."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from timm.layers import Conv2dSame
from timm.layers import Linear as TimmLinear
from torch import nn

from senseapp.compressions import QuantizationConfig, SparsityConfig, obs
from senseapp.compressions.base import WeightGrid
from senseapp.compressions.quantization.grid import GRIDS
from senseapp.measure.sweep import measure
from senseapp.networks.layer_product import LayerProduct
from senseapp.prove.prove import prove
from senseapp.prove.repair_choice import measured_quickly
from senseapp.records.measurement import change_in
from senseapp.records.schedule import ResourceBudget, Schedule, ScheduleEntry
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.methods import make_schedule
from senseapp.tasks import CLASSIFICATION
from tests.cases import first_of
from tests.small_evaluator import evaluator_of


def problem(seed, *, rows=6, width=6, groups=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(groups, 50, width, generator=generator)
    mixed = inputs @ torch.randn(groups, width, width, generator=generator)
    return torch.randn(groups, rows, width, generator=generator), obs.damped(mixed.transpose(1, 2) @ mixed)


def error(weight, found, second):
    difference = (weight - found)[0].double().numpy()
    return np.einsum("ok,kl,ol->o", difference, second[0].double().numpy(), difference)


def grid(bits, *, shared=False):
    numbers = GRIDS["int"](bits)
    return WeightGrid(nearest=numbers.nearest, largest=numbers.largest, shared=shared)


def best_on_two_bits(row, second):
    """Return the least squared error of a row over all of -1, 0, 1 and any scale, counted out."""
    least = row @ second @ row
    for steps in itertools.product((-1, 0, 1), repeat=len(row)):
        product = np.array(steps) @ second
        if product @ steps > 0 and (above := product @ row) > 0:
            least = min(least, row @ second @ row - above**2 / (product @ steps))
    return least


def test_rounding_comes_near_the_best_there_is():
    excess, usual = [], []
    for seed in range(8):
        weight, second = problem(seed)
        found = error(weight, obs.rounded(weight, second, grid(2)).matrix, second)
        scale = weight.abs().amax(2, keepdim=True)
        nearest = error(weight, (weight / scale).round().clamp(-1, 1) * scale, second)
        best = [best_on_two_bits(row, second[0].double().numpy()) for row in weight[0].double().numpy()]
        assert (found >= np.array(best) * (1 - 1e-4)).all()
        excess += list(found / best)
        usual += list(nearest / best)
    assert np.median(excess) < 1.2
    assert np.median(usual) > 3 * np.median(excess)


@pytest.mark.parametrize("rows", [12, 40, 4000])
def test_few_rows_of_inputs_are_not_trusted_more_than_they_tell(rows):
    """Beside a fixed share, by the error for all inputs, of which only ``rows`` are seen."""
    shrunk, fixed, plain = [], [], []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        mixing = torch.randn(1, 40, 40, generator=generator) * torch.linspace(1, 0.2, 40)
        weight = torch.randn(1, 8, 40, generator=generator)
        inputs = torch.randn(1, rows, 40, generator=generator) @ mixing.transpose(1, 2)
        second, true = inputs.transpose(1, 2) @ inputs, mixing @ mixing.transpose(1, 2)
        for found, moments in ((shrunk, obs.damped(second, rows)), (fixed, obs.damped(second))):
            found.append(error(weight, obs.rounded(weight, moments, grid(3)).matrix, true).sum())
        scale = weight.abs().amax(2, keepdim=True) / 3
        plain.append(error(weight, (weight / scale).round() * scale, true).sum())
    assert np.mean(shrunk) < 0.9 * np.mean(plain)
    assert np.mean(shrunk) < (1.001 if rows > 40 else 0.92) * np.mean(fixed)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("shared", [False, True])
def test_rounded_weights_lie_on_one_grid_for_each_row_or_all(bits, shared):
    weight, second = problem(bits, rows=5, width=70)
    found = obs.rounded(weight, second, grid(bits, shared=shared))
    assert found.scale is not None
    numbers = (found.matrix / found.scale[..., None]).round()
    assert float(numbers.abs().max()) <= 2 ** (bits - 1) - 1
    assert torch.equal(numbers * found.scale[..., None], found.matrix)
    assert not shared or len(found.scale.unique()) == 1


def test_what_is_not_kept_stays_zero_and_the_rest_makes_up_for_it():
    weight, second = problem(0, rows=8, width=12)
    kept = torch.rand(weight.shape, generator=torch.Generator().manual_seed(1)) > 0.4
    found = obs.rounded(weight, second, grid(4), kept=kept).matrix
    assert bool((found[~kept] == 0).all())
    plain = obs.rounded(weight, second, grid(4)).matrix * kept
    assert error(weight, found, second).sum() < error(weight, plain, second).sum()


def test_least_squares_is_the_exact_solution_on_what_is_kept():
    weight, second = problem(1)
    kept = torch.rand(weight.shape, generator=torch.Generator().manual_seed(2)) > 0.5
    found = obs.least_squares(weight, second, kept)[0].double().numpy()
    moments = second[0].double().numpy()
    for row, old, mask in zip(found, weight[0].double().numpy(), kept[0].numpy(), strict=True):
        wanted = np.zeros_like(row)
        wanted[mask] = np.linalg.solve(moments[np.ix_(mask, mask)], (moments @ old)[mask])
        np.testing.assert_allclose(row, wanted, rtol=1e-2, atol=1e-3)


def half(scores, share):
    number = int(share * scores.numel() / 2)
    order = scores.flatten().argsort()
    return torch.ones(scores.numel(), dtype=torch.bool).index_fill_(0, order[:number], value=False).view(scores.shape)


def test_zeros_go_where_the_rest_makes_up_for_them_best():
    """Beside every pattern of three zeros in six, each with its exact solution."""
    excess, magnitude = [], []
    for seed in range(12):
        weight, second = problem(seed, rows=1)
        found = obs.zeroed(weight, second, half)
        assert int((found == 0).sum()) == 3
        errors = {}
        for gone in itertools.combinations(range(6), 3):
            kept = torch.ones_like(weight, dtype=torch.bool)
            kept[..., list(gone)] = False
            errors[gone] = error(weight, obs.least_squares(weight, second, kept), second)[0]
        best = min(errors.values())
        excess.append(error(weight, found, second)[0] / best)
        magnitude.append(error(weight, weight * half(weight.abs(), 1.0), second)[0] / best)
    assert min(excess) > 0.99
    assert np.median(excess) < 1.5
    assert np.median(magnitude) > 3 * np.median(excess)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2),
        nn.Conv2d(4, 6, (3, 2), padding="same", padding_mode="reflect"),
        Conv2dSame(4, 4, 3, stride=2, groups=4),
        nn.Conv1d(4, 6, 5, padding=2),
        nn.Conv3d(4, 2, (1, 2, 3), padding=(0, 1, 1)),
        nn.Linear(5, 7),
        TimmLinear(5, 7),
    ],
)
def test_rows_times_the_matrix_are_the_layers_outputs(module):
    sizes = {nn.Conv1d: (9,), nn.Conv3d: (3, 5, 4), nn.Linear: (9,), TimmLinear: (9,)}.get(type(module), (9, 7))
    given = torch.randn(3, *((*sizes, 5) if isinstance(module, nn.Linear) else (4, *sizes)))
    assert not LayerProduct.obstacle(module)
    product = LayerProduct(module, tuple(module.weight.shape))
    rows = product.rows(given, 6, torch.Generator().manual_seed(0))
    outputs = ((rows @ product.matrix(module.weight).transpose(1, 2)).transpose(0, 1).flatten(1) + module.bias).detach()
    given = module(given).detach()
    every = given if isinstance(module, nn.Linear) else given.flatten(2).transpose(1, 2)
    distances = (outputs.view(3, 6, 1, -1) - every.reshape(3, 1, -1, every.shape[-1])).abs().amax(3)
    assert float(distances.amin(2).max()) < 1e-5  # each is the output somewhere in its image
    assert len(distances.argmin(2).unique()) >= 6


class _Network(nn.Module):
    """Convolutions with and without norms, a depthwise one, attention and a linear layer, with a skip connection."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point = nn.Conv2d(8, 8, 1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, images):
        first = self.bn(self.stem(images)).relu_()
        rows = (first + self.point(self.depthwise(first).relu())).flatten(2).transpose(1, 2)
        return 4 * self.head((rows + self.attention(rows, rows, rows, need_weights=False)[0]).mean(1))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    model = _Network().eval()
    model.bn.running_var.fill_(2.0)
    return model


def schedule(evaluator, levels):
    entries = tuple(
        ScheduleEntry(layer=layer.name, members=(layer.name,), compression=kind, level=level)
        for kind, level in levels.items()
        for layer in evaluator.profile.layers
        if layer.name != "attention.out_proj" and (kind != "sparsity" or layer.name != "stem")
    )
    return Schedule(model="small", method="manual", entries=entries, metric="kl")


def kl(changes):
    change = change_in(changes, "kl")
    assert change is not None
    return change.delta


CASES = {
    "bits": ((QuantizationConfig(),), {"quantization": 3.0}),
    "bits, one scale": ((QuantizationConfig(granularity="tensor"),), {"quantization": 4.0}),
    "bits, inputs too": ((QuantizationConfig(activations=True),), {"quantization": 4.0}),
    "zeros": ((SparsityConfig(),), {"sparsity": 0.5}),
    "filters": ((SparsityConfig(granularity="filter"),), {"sparsity": 0.25}),
    "zeros and bits": ((SparsityConfig(), QuantizationConfig()), {"sparsity": 0.4, "quantization": 4.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_network_is_adapted_within_its_schedule_and_comes_back(network, case):
    configs, levels = CASES[case]
    evaluator = evaluator_of(network, *configs)
    applied = evaluator.apply(schedule(evaluator, levels))
    plain = {name: value.clone() for name, value in applied.model.state_dict().items()}
    before = kl(evaluator.judged(applied).changes)
    adaptation = evaluator.adaptation(applied)
    with applied.active():
        assert adaptation.fit()
    assert set(adaptation.layers) == {entry.layer for entry in applied.reached}
    assert kl(evaluator.judged(applied).changes) < before
    adapted = {name: value.clone() for name, value in applied.model.state_dict().items()}
    for layer in applied.after.layers:
        now = adapted[layer.parameter]
        if "sparsity" in levels:
            assert int((now == 0).sum()) >= int((plain[layer.parameter] == 0).sum())
        if "quantization" in levels and layer.name in adaptation.layers:
            integers = applied.integers[layer.name]
            assert integers.largest <= 2 ** (int(levels["quantization"]) - 1) - 1
            assert torch.equal(integers.dequantized(), now)
    with applied.active():
        assert adaptation.fit()
    assert all(torch.equal(value, adapted[name]) for name, value in applied.model.state_dict().items())
    adaptation.undo()
    assert all(torch.equal(value, plain[name]) for name, value in applied.model.state_dict().items())
    for name, weight in applied.integers.items():
        assert torch.equal(weight.dequantized(), plain[applied.after.layer(name).parameter])


def test_two_of_four_stay_two_of_four(network):
    evaluator = evaluator_of(network, SparsityConfig(granularity="2:4"))
    entries = tuple(
        ScheduleEntry(layer=name, members=(name,), compression="sparsity", level=0.5) for name in ("point", "head")
    )
    applied = evaluator.apply(Schedule(model="small", method="manual", entries=entries, metric="kl"))
    assert evaluator.adaptation(applied).fit()
    for name in ("point", "head"):
        zeros = (applied.model.get_submodule(name).weight == 0).flatten(1).unflatten(1, (-1, 4)).sum(2)
        assert bool((zeros == 2).all())


def test_a_proof_says_what_each_step_gained_and_delivers_no_worse(network):
    evaluator = evaluator_of(network, QuantizationConfig())
    found = prove(evaluator, schedule(evaluator, {"quantization": 3.0}), repair=True, adapting="minutes")
    result = found.result
    assert (result.adapting, result.delivered) == ("minutes", "adapted")
    assert kl(result.kept_changes) == kl(result.repaired) < kl(result.changes)
    assert kl(evaluator.judged(found.applied).changes) == pytest.approx(kl(result.repaired), abs=1e-6)
    assert [step.kept for step in result.steps].count(True) == 1
    kept = next(step for step in result.steps if step.kept)
    assert kept.change.delta == min(step.change.delta for step in result.steps)
    assert {step.change.num_samples for step in result.steps} == {48}
    assert "Weights updated" in kept.title


def test_a_run_measured_with_adapted_weights_predicts_what_is_delivered(network):
    evaluator = evaluator_of(network, QuantizationConfig())
    spec = SensitivitySpec(compression=QuantizationConfig(), levels=(2, 3, 4, 8), metric="kl", adapted=True)
    found = tuple(measure(network, evaluator.images.curves, spec, task=CLASSIFICATION))
    result = replace(evaluator.result, spec=RunSpec(sensitivity=spec), measurements=found)
    evaluator = replace(evaluator, result=result)
    asked = make_schedule(result, budget=ResourceBudget(kind="bits", target=3.0), metric="kl")
    proven = prove(evaluator, asked, repair=True, adapting="minutes").result
    assert proven.delivered == "adapted"
    assert kl(proven.repaired) < 4 * proven.predicted
    assert kl(proven.changes) > 10 * proven.predicted
    searched, adapted = measured_quickly(evaluator, evaluator.apply(asked), "kl", tolerable=0.0)
    assert adapted
    assert kl(searched) < 4 * proven.predicted


class _Blocks(nn.Module):
    """Two blocks of convolutions and norms, which work in place."""

    def __init__(self):
        super().__init__()

        def block(width):
            return nn.Sequential(
                nn.Conv2d(width, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1)
            )

        self.blocks = nn.Sequential(block(3), block(8))
        self.head = nn.Linear(8, 10)

    def forward(self, images):
        return 4 * self.head(self.blocks(images).mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "levels"),
    first_of([(SparsityConfig(), {"sparsity": 0.7}), (QuantizationConfig(), {"quantization": 2.0})]),
    ids=["zeros", "rounded"],
)
def test_blocks_are_tuned_towards_the_originals_outputs_within_what_compression_allows(config, levels):
    torch.manual_seed(0)
    evaluator = evaluator_of(_Blocks().eval(), config)
    applied = evaluator.apply(schedule(evaluator, levels))
    plain = {name: value.clone() for name, value in applied.model.state_dict().items()}
    adaptation, tuned = (evaluator.adaptation(applied, how) for how in ("minutes", "best"))
    images, layer = torch.cat(evaluator.reference.batches), applied.model.blocks[1][0]
    wanted = evaluator.dense.model.blocks(images)

    def error():
        with torch.no_grad():
            return float((applied.model.blocks(images) - wanted).square().mean())

    with adaptation.fitted():
        closed_form, weight = error(), layer.weight.clone()
    assert tuned.fit()
    assert error() < 0.9 * closed_form
    assert not torch.equal(layer.weight, weight)
    if "sparsity" in levels:
        assert torch.equal(layer.weight == 0, weight == 0)
    else:
        largest = layer.weight.abs().amax((1, 2, 3), keepdim=True)
        assert torch.equal((layer.weight / largest).round() * largest, layer.weight)
    assert not any(parameter.requires_grad for parameter in applied.model.parameters())
    adapted = {name: value.clone() for name, value in applied.model.state_dict().items()}
    assert tuned.fit()
    assert all(torch.equal(value, adapted[name]) for name, value in applied.model.state_dict().items())
    tuned.undo()
    assert all(torch.equal(value, plain[name]) for name, value in applied.model.state_dict().items())


def test_cancelling_between_layers_stops_the_work(network):
    evaluator = evaluator_of(network, QuantizationConfig())
    applied = evaluator.apply(schedule(evaluator, {"quantization": 3.0}))
    seen = []

    def report(sentence):
        seen.append(sentence)
        if "depthwise" in sentence:
            raise InterruptedError

    adaptation = evaluator.adaptation(applied)
    evaluator.progress.report = report
    with pytest.raises(InterruptedError):
        adaptation.fit()
    assert "depthwise, 3 of 6" in seen[-1]
