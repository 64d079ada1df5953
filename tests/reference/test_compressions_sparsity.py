"""Sparsity against plain numpy loops written from the definitions."""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import nn

from senseapp.compressions import SparsityConfig
from tests.cases import first_of
from tests.compressors import compressed_weight, compressor_of

LAYERS = {
    "conv2d": lambda: nn.Conv2d(8, 6, (3, 2)),
    "grouped conv2d": lambda: nn.Conv2d(8, 6, 3, groups=2),
    "depthwise conv2d": lambda: nn.Conv2d(6, 6, 3, groups=6),
    "conv1d": lambda: nn.Conv1d(4, 6, 3),
    "conv3d": lambda: nn.Conv3d(4, 3, (2, 3, 2)),
    "transposed conv2d": lambda: nn.ConvTranspose2d(8, 6, (3, 2)),
    "grouped transposed conv2d": lambda: nn.ConvTranspose2d(8, 6, 2, groups=2),
    "linear": lambda: nn.Linear(8, 6),
}


def _true_channels(module: nn.Module, index: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
    """Return output channel, input channel and (depth, row, column) of one weight of the network."""
    groups = getattr(module, "groups", 1)
    kernel = (0, 0, 0, *index[2:])[-3:]
    if getattr(module, "transposed", False):
        group = index[0] // (module.in_channels // groups)
        return group * (module.out_channels // groups) + index[1], index[0], kernel
    if groups == 1:
        return index[0], index[1], kernel
    group = index[0] // (module.out_channels // groups)
    return index[0], group * (module.in_channels // groups) + index[1], kernel


UNIT_OF = {
    "weight": lambda o, i, k: (o, i, k),
    "kernel": lambda o, i, k: (o, i),
    "filter": lambda o, i, k: (o,),
    "channel": lambda o, i, k: (i,),
    "row": lambda o, i, k: (o, i, k[0], k[1]),
    "column": lambda o, i, k: (o, i, k[0], k[2]),
}


def _indices(weight: np.ndarray) -> Iterable[tuple[int, ...]]:
    return itertools.product(*map(range, weight.shape))


@pytest.mark.parametrize("criterion", first_of(["magnitude", "squared_magnitude"]))
@pytest.mark.parametrize("granularity", list(UNIT_OF))
@pytest.mark.parametrize("kind", list(LAYERS))
def test_the_units_of_least_mean_importance_are_zeroed(kind, granularity, criterion):
    torch.manual_seed(3)
    model = nn.Sequential(LAYERS[kind]()).eval()
    weight = model[0].weight.detach().double().numpy()
    units: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for index in _indices(weight):
        units.setdefault(UNIT_OF[granularity](*_true_channels(model[0], index)), []).append(index)
    power = 1 if criterion == "magnitude" else 2
    importance = {unit: np.mean([abs(weight[index]) ** power for index in own]) for unit, own in units.items()}
    compressor = compressor_of(model, SparsityConfig(granularity=granularity, criterion=criterion))
    for percent in (35, 50, 90):
        expected = weight.copy()
        for unit in sorted(units, key=importance.__getitem__)[: percent * len(units) // 100]:
            for index in units[unit]:
                expected[index] = 0
        assert np.array_equal(compressed_weight(compressor, model[0].weight, percent / 100).double().numpy(), expected)


@pytest.mark.parametrize(
    "kind", ["conv2d", "grouped conv2d", "conv3d", "transposed conv2d", "grouped transposed conv2d"]
)
def test_two_of_four_along_the_input_axis(kind):
    torch.manual_seed(3)
    model = nn.Sequential(LAYERS[kind]()).eval()
    weight = model[0].weight.detach().numpy()
    blocks: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for index in _indices(weight):
        output, channel, kernel = _true_channels(model[0], index)
        blocks.setdefault((output, channel // 4, kernel), []).append(index)
    expected = weight.copy()
    for own in blocks.values():
        assert len(own) == 4
        for index in sorted(own, key=lambda place: abs(weight[place]))[:2]:
            expected[index] = 0
    compressor = compressor_of(model, SparsityConfig(granularity="2:4"))
    assert np.array_equal(compressed_weight(compressor, model[0].weight, 0.5).numpy(), expected)


def _wanda_scores(module: nn.Module, batches: list[torch.Tensor]) -> np.ndarray:
    """|W| · ‖x‖₂ with the norm of each input channel over images and positions, weight by weight."""
    squares: dict[int, float] = {}
    for batch in batches:
        values = batch.double().numpy()
        for channel in range(values.shape[1]):
            squares[channel] = squares.get(channel, 0.0) + float((values[:, channel] ** 2).sum())
    weight = module.weight.detach().double().numpy()
    scores = np.empty_like(weight)
    for index in _indices(weight):
        scores[index] = abs(weight[index]) * squares[_true_channels(module, index)[1]] ** 0.5
    return scores


@pytest.mark.parametrize(
    "kind", ["conv2d", "grouped conv2d", "depthwise conv2d", "transposed conv2d", "grouped transposed conv2d", "linear"]
)
def test_wanda_zeroes_the_least_scores_of_each_output(kind):
    torch.manual_seed(3)
    model = nn.Sequential(LAYERS[kind]()).eval()
    width = getattr(model[0], "in_channels", 8)
    scales = torch.rand(width) * 5
    shape = (3, width) if kind == "linear" else (3, width, 5, 5)
    batches = [torch.randn(shape) * scales.view(-1, *(1,) * (len(shape) - 2)) for _ in range(2)]
    scores = _wanda_scores(model[0], batches)
    compressor = compressor_of(model, SparsityConfig(criterion="wanda"), calibration=batches)
    zeros = compressed_weight(compressor, model[0].weight, 0.5).numpy() == 0
    rows: dict[int, list[tuple[int, ...]]] = {}
    for index in _indices(scores):
        rows.setdefault(_true_channels(model[0], index)[0], []).append(index)
    for own in rows.values():
        lost = sum(zeros[index] for index in own)
        assert abs(lost - len(own) / 2) < 1
        assert all(zeros[index] for index in sorted(own, key=scores.__getitem__)[:lost])
    assert zeros.sum() == zeros.size // 2


def test_wanda_inside_a_network_sees_the_layers_own_input():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 4)).eval()
    images = torch.randn(6, 3, 5, 5)
    compressor = compressor_of(model, SparsityConfig(criterion="wanda"), calibration=images.split(2))
    with torch.no_grad():
        features = model[:3](images)
    scores = model[3].weight.detach().abs() * features.norm(dim=0)
    expected = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.argsort(dim=1)[:, :36], True)
    zeros = compressed_weight(compressor, model[3].weight, 0.5, target=1) == 0
    assert torch.equal(zeros, expected)
