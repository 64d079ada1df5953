"""What holds for structural pruning of any small network, at any level and by any criterion."""

import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from senseapp.compressions.pruning.pruning import PruningCompressor
from senseapp.core.errors import MeasurementFailed
from tests.cases import examples
from tests.pruning_models import footprint, images, pruning_of


class _Chain(nn.Module):
    """Convolutions in a row, some grouped, some with a shortcut around them."""

    def __init__(self, widths: list[int], groups: int, shortcut: bool) -> None:
        super().__init__()
        sizes = [3, *widths]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, groups=groups if a % groups == b % groups == 0 else 1)
            for a, b in itertools.pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)
        self.shortcut = shortcut
        self.head = nn.Linear(widths[-1], 4)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = norm(conv(x)).relu()
            x = y + x if self.shortcut and y.shape == x.shape else y
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


@st.composite
def _compressors(draw: st.DrawFn) -> tuple[_Chain, PruningCompressor]:
    widths = draw(st.lists(st.sampled_from([4, 6, 8]), min_size=1, max_size=4))
    criterion = draw(
        st.sampled_from(["magnitude", "magnitude_l1", "lamp", "fpgm", "bn_scale", "least_error", "random"])
    )
    torch.manual_seed(0)
    model = _Chain(widths, draw(st.sampled_from([1, 2])), draw(st.booleans())).eval()
    return model, pruning_of(model, images(), criterion=criterion)


@settings(max_examples=examples(40), deadline=None)
@given(made=_compressors(), level=st.floats(0.01, 0.99))
def test_a_prune_removes_at_most_the_level_and_is_undone(made: tuple[_Chain, PruningCompressor], level: float) -> None:
    model, compressor = made
    state, baseline = footprint(model), model(images())
    before = sum(parameter.numel() for parameter in model.parameters())
    for target in compressor.targets:
        layer = model.get_submodule(target.layer)
        channels, groups = layer.out_channels, max(conv.groups for conv in model.convs)
        try:
            with compressor.compress(target, level) as applied:
                removed = channels - layer.out_channels
                assert applied.achieved_level == removed / channels
                assert level - groups / channels < applied.achieved_level <= level + 1e-9
                assert 0 < applied.removed_params < before
                assert model(images()).shape == baseline.shape
        except MeasurementFailed:
            assert math.floor(level * channels / groups + 1e-9) == 0 or groups > 1
        assert footprint(model) == state
    assert torch.equal(model(images()), baseline)


@settings(max_examples=examples(20), deadline=None)
@given(made=_compressors(), levels=st.tuples(st.floats(0.2, 0.9), st.floats(0.2, 0.9)))
def test_a_higher_level_takes_the_channels_of_a_lower_one_too(
    made: tuple[_Chain, PruningCompressor], levels: tuple[float, float]
) -> None:
    _, compressor = made
    for target in compressor.targets:
        try:
            (_, few), (_, many) = (compressor.removed_inputs(target, level) for level in sorted(levels))
        except MeasurementFailed:
            continue
        assert all(set(few[reader].tolist()) <= set(many[reader].tolist()) for reader in compressor.readers(target))
