"""What a network does not run without is not prunable, with the reason; everything else stays so."""

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from senseapp.compressions.pruning import search
from senseapp.compressions.pruning.graph import ChannelGraph
from senseapp.core.errors import MeasurementFailed
from tests.pruning_models import Residual, footprint, images, pruning_of

WIDTH = 8


class _Middle(nn.Module):
    """Two convolutions; what is between the first and the second needs all channels; the second can lose some."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, WIDTH, 1)
        self.second = nn.Conv2d(WIDTH, 6, 1)
        self.head = nn.Linear(6, 5)

    def between(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.second(self.between(self.first(x))).mean((2, 3)))
        return scores


class _FrozenNorm(_Middle):
    def __init__(self) -> None:
        super().__init__()
        self.norm = FrozenBatchNorm2d(WIDTH)

    def between(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed


class _WrittenWidth(_Middle):
    def between(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), WIDTH, *x.shape[2:]) + 1


class _Table(_Middle):
    """A plain tensor, neither buffer nor parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = [torch.zeros(WIDTH, 1, 1)]

    def between(self, x: Tensor) -> Tensor:
        return x + self.shift[0]


@pytest.mark.parametrize("make", [_FrozenNorm, _WrittenWidth, _Table])
def test_a_structure_that_needs_all_channels_is_not_prunable_and_the_rest_is(make: type[_Middle]) -> None:
    model = make().eval()
    before = footprint(model)
    compressor = pruning_of(model, images())
    assert [target.layer for target in compressor.targets] == ["second"]
    assert compressor.not_applicable["first"].startswith("The network does not run without some of its channels: ")
    assert footprint(model) == before


@pytest.mark.parametrize("place", ["head_groups", "channel_groups", "miswired", "unshrinkable", "_fixed_layers"])
def test_whatever_is_raised_while_groups_are_found_is_a_reason(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object, **_named: object) -> None:
        raise ZeroDivisionError("integer division or modulo by zero")

    monkeypatch.setattr(search, place, fails)
    compressor = pruning_of(Residual().eval(), images())
    assert not compressor.targets
    assert set(compressor.not_applicable) == {"stem", "conv1", "conv2", "depthwise", "head"}
    assert "ZeroDivisionError: integer division or modulo by zero" in compressor.not_applicable["conv1"]


def test_a_failure_inside_one_group_is_a_reason_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = ChannelGraph.cuts

    def fails(self: ChannelGraph, root: nn.Module, channels: range) -> object:
        if self.names[root] == "conv1":
            raise KeyError("lost")
        return cuts(self, root, channels)

    monkeypatch.setattr(ChannelGraph, "cuts", fails)
    compressor = pruning_of(Residual().eval(), images())
    assert [target.layer for target in compressor.targets] == ["stem"]
    assert "KeyError" in compressor.not_applicable["conv1"]


def test_to_follow_channels_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("senseapp.compressions.pruning.graph.MOST_POSITIONS", 3000)
    compressor = pruning_of(Residual().eval(), images())
    reasons = [why for why in compressor.not_applicable.values() if "out of proportion" in why]
    assert reasons


class _Joined(nn.Module):
    """The outputs of two layers are joined and added to those of a third, so that half of the channels are each's."""

    def __init__(self) -> None:
        super().__init__()
        self.weak, self.strong = nn.Conv2d(3, WIDTH // 2, 1), nn.Conv2d(3, WIDTH // 2, 1)
        self.whole, self.head = nn.Conv2d(3, WIDTH, 1), nn.Linear(WIDTH, 5)
        with torch.no_grad():
            self.whole.weight[: WIDTH // 2] *= 1e-3
            self.weak.weight *= 1e-3

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head((torch.cat([self.weak(x), self.strong(x)], 1) + self.whole(x)).mean((2, 3)))
        return scores


def test_a_layer_keeps_a_channel_or_the_reason_is_said() -> None:
    model = _Joined().eval()
    compressor = pruning_of(model, images())
    (target,) = compressor.targets
    with pytest.raises(MeasurementFailed, match="All channels of weak are among the 4 of 8 that would go"):
        compressor.compress(target, 0.5).__enter__()
    with compressor.compress(target, 0.375):
        assert model.weak.out_channels == 1
        assert model(images()).shape == (len(images()), 5)
