"""Laws of sparsity that hold for every layer, granularity, criterion and level."""

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from senseapp.compressions import SparsityConfig
from senseapp.compressions.base import WeightLayout
from senseapp.compressions.sparsity.criteria import CRITERIA, GRANULARITIES
from senseapp.compressions.sparsity.sparsity import Ranking
from senseapp.core.errors import MeasurementFailed
from senseapp.descriptions.levels import whole_units
from tests.cases import examples
from tests.compressors import compressor_of

GRADED = sorted(GRANULARITIES.keys() - {"2:4"})


@st.composite
def _convolutions(draw: st.DrawFn) -> nn.Module:
    groups = draw(st.sampled_from([1, 2]))
    inputs, outputs = groups * draw(st.integers(1, 4)), groups * draw(st.integers(1, 4))
    kinds = [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
    return draw(st.sampled_from(kinds))(inputs, outputs, draw(st.integers(1, 3)), groups=groups)


def _percents() -> st.SearchStrategy[int]:
    return st.integers(1, 99)


@settings(max_examples=examples(60), deadline=None)
@given(
    module=_convolutions(),
    granularity=st.sampled_from(GRADED),
    criterion=st.sampled_from(sorted(CRITERIA)),
    percent=_percents(),
)
def test_exactly_floor_of_level_times_units_are_zeroed_and_the_rest_is_untouched(
    module, granularity, criterion, percent
):
    model = nn.Sequential(module).eval()
    module.weight.data.uniform_(0.1, 1.0)  # no zeros to begin with
    images = torch.rand(2, module.in_channels, *(4,) * (module.weight.dim() - 2))
    compressor = compressor_of(
        model, SparsityConfig(granularity=granularity, criterion=criterion), calibration=[images]
    )
    if not compressor.targets:
        assert compressor.not_applicable
        return
    before = module.weight.detach().clone()
    num_units = _num_units(module, granularity)
    expected = percent * num_units // 100
    try:
        with compressor.compress(compressor.targets[0], percent / 100) as applied:
            zeros = module.weight == 0
            assert int(zeros.sum()) == expected * (before.numel() // num_units) == applied.removed_params
            assert torch.equal(module.weight[~zeros], before[~zeros])
    except MeasurementFailed:
        assert expected == 0
    assert torch.equal(module.weight, before)


def _num_units(module: nn.Module, granularity: str) -> int:
    kernel = module.kernel_size
    return {
        "weight": module.weight.numel(),
        "kernel": (module.in_channels * module.out_channels // module.groups),
        "filter": module.out_channels,
        "channel": module.in_channels,
        "row": module.weight.numel() // kernel[-1],
        "column": module.weight.numel() // (kernel[-2] if len(kernel) > 1 else 1),
    }[granularity]


@given(percent=_percents(), num_units=st.integers(1, 10**6))
def test_the_number_of_zeroed_units_is_the_exact_floor(percent, num_units):
    assert whole_units(percent / 100, num_units) == int(Fraction(percent, 100) * num_units)


@settings(max_examples=examples(60), deadline=None)
@given(module=_convolutions())
def test_splitting_and_merging_is_the_identity(module):
    layout = WeightLayout(groups=module.groups, transposed=module.transposed)
    split = layout.split(module.weight.detach())
    assert split.shape[:3] == (module.groups, module.out_channels // module.groups, module.in_channels // module.groups)
    merged = layout.merge(split, module.weight)
    assert torch.equal(merged, module.weight)
    assert merged.stride() == module.weight.stride()


@given(
    contests=st.integers(1, 5),
    competitors=st.integers(1, 6),
    values=st.lists(st.integers(0, 4), min_size=30, max_size=30),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_each_contest_loses_its_worst_and_more_levels_lose_more(contests, competitors, values, fraction):
    scores = torch.tensor(values[: contests * competitors], dtype=torch.float32).view(contests, competitors)
    ranking = Ranking(scores)
    count = int(fraction * scores.numel())
    lost = ~ranking.kept(count)
    assert int(lost.sum()) == count
    assert int(lost.sum(1).max() - lost.sum(1).min()) <= 1
    for row, row_lost in zip(scores, lost, strict=True):
        in_order = row.argsort(stable=True)[: int(row_lost.sum())]
        assert sorted(in_order.tolist()) == row_lost.nonzero().flatten().tolist()
    if count:
        assert bool((lost | ranking.kept(count - 1)).all())
