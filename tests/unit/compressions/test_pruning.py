"""Structural pruning of tiny networks whose coupling is known by hand."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from senseapp.compressions import PruningConfig
from senseapp.compressions.base import ChannelCompressor, CompressionRequest, Target, build_compressor
from senseapp.compressions.pruning.graph import ChannelGraph
from senseapp.compressions.pruning.groups import channel_groups
from senseapp.compressions.pruning.pruning import PruningCompressor
from senseapp.compressions.pruning.search import miswired
from senseapp.core.errors import InvalidDataset, InvalidSchedule, MeasurementFailed
from senseapp.networks.profile import profile_model, watched_pass
from tests.pruning_models import ChannelShuffle, Concat, Residual, footprint, images, pruning_of, request_of


def _target(compressor: PruningCompressor, layer: str) -> Target:
    return next(target for target in compressor.targets if target.layer == layer)


def test_layers_that_are_added_together_are_one_target() -> None:
    compressor = pruning_of(Residual().eval(), images())
    stream = _target(compressor, "stem")
    assert stream.members == ("stem", "conv2", "depthwise")
    assert stream.group == "stem"
    assert set(stream.modules) == {"stem", "bn", "conv1", "conv2", "depthwise", "head"}
    assert _target(compressor, "conv1").group == ""
    assert [target.layer for target in compressor.targets] == ["stem", "conv1"]


def test_it_is_registered_and_names_readers() -> None:
    compressor = build_compressor(PruningConfig(), request_of(Concat().eval(), images()))
    assert isinstance(compressor, ChannelCompressor)
    right = next(target for target in compressor.targets if target.layer == "right")
    applied, removed = compressor.removed_inputs(right, 0.25)
    assert compressor.readers(right) == ("mid",)
    assert len(removed["mid"]) == 4
    assert min(removed["mid"]) >= 8  # the left convolution holds the first 8 of the 24
    assert applied.achieved_level == 0.25


def test_counts_are_those_of_the_shrunk_model() -> None:
    model, x = Residual().eval(), images()
    compressor = pruning_of(model, x)
    before = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    with compressor.compress(_target(compressor, "stem"), 0.3) as applied:
        assert (
            model.stem.out_channels == model.conv1.in_channels == model.depthwise.groups == model.bn.num_features == 6
        )
        after = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
        assert model(x).shape == (2, 5)
    assert applied.achieved_level == 0.25  # floor(0.3 · 8) = 2 of 8
    assert applied.removed_params == before - after
    positions = 16  # each convolution's output is 4 × 4; the linear layer runs once
    linear = 2 * 5
    assert applied.removed_macs == (before - after - linear) * positions + linear


@pytest.mark.parametrize("fails", [False, True])
def test_undo_is_exact_also_after_an_error(fails: bool) -> None:
    model, x = Residual().eval(), images()
    model.conv1.weight.requires_grad_(False)
    state, values = footprint(model), [tensor.clone() for tensor in model.state_dict().values()]
    baseline = model(x)
    compressor = pruning_of(model, x)
    assert footprint(model) == state
    for target in compressor.targets:
        try:
            with compressor.compress(target, 0.5):
                assert not model.conv1.weight.requires_grad
                assert footprint(model) != state
                if fails:
                    raise RuntimeError("the measurement broke")
        except RuntimeError:
            assert fails
        assert footprint(model) == state
    assert all(torch.equal(a, b) for a, b in zip(values, model.state_dict().values(), strict=True))
    assert torch.equal(model(x), baseline)


def test_it_works_inside_inference_mode() -> None:
    model, x = Residual().eval(), images()
    layers = request_of(model, x).layers
    with torch.inference_mode():
        request = CompressionRequest(model=model, layers=layers, calibration=(x.clone(),))
        compressor = PruningCompressor(PruningConfig(), request)
    with torch.inference_mode(), compressor.compress(compressor.targets[0], 0.5):
        assert model(x).shape == (2, 5)
    model(x).sum().backward()  # ordinary tensors are back
    assert model.stem.weight.grad is not None


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_what_is_left_of_a_weight_keeps_its_order_in_memory(order: torch.memory_format) -> None:
    model, x = Residual().eval().to(memory_format=order), images()
    compressor = pruning_of(model, x)
    with compressor.compress(_target(compressor, "conv1"), 0.5):
        assert model.conv1.weight.shape == (6, 8, 3, 3)
        assert model.conv2.weight.shape == (8, 6, 3, 3)
        assert model.conv1.weight.is_contiguous(memory_format=order)
        assert model.conv2.weight.is_contiguous(memory_format=order)
        assert model.conv1.weight.requires_grad


def test_the_wiring_is_checked_without_computing_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Residual().eval(), images()
    trace = watched_pass(model, x)
    layers = profile_model(model, x, trace=trace).layers
    graph = ChannelGraph(model, x)
    groups, _ = channel_groups(graph, [layer.name for layer in layers], {}, {}, set())

    def refuse(*_arguments: object) -> Tensor:
        raise AssertionError("a convolution was computed")

    monkeypatch.setattr("torch.nn.Conv2d.forward", refuse)
    assert len(groups) == 2
    assert miswired(graph, groups, x, trace, 0) == {}


def test_channels_leave_each_group_of_a_norm_and_convolution_alike() -> None:
    model, x = Concat().eval(), images()
    compressor = pruning_of(model, x)
    with compressor.compress(_target(compressor, "mid"), 0.5) as applied:  # groups of 2 and of 4: steps of 4 channels
        assert (model.mid.out_channels, model.norm.num_channels, model.grouped.in_channels) == (4, 4, 4)
        assert model.grouped.weight.shape == (12, 1, 3, 3)
        assert model(x).shape == (2, 5)
    assert applied.achieved_level == 0.5
    with compressor.compress(_target(compressor, "grouped"), 0.4):  # 12 channels in 4 groups of 3: floor(0.4 · 3) = 1
        assert model.grouped.weight.shape == (8, 2, 3, 3)
        assert model.head.in_features == 8 * 4
    with pytest.raises(MeasurementFailed, match=r"only 2 steps of channels.* at least 50 %"):
        compressor.compress(_target(compressor, "mid"), 0.4).__enter__()


def test_magnitude_removes_the_smallest_filters() -> None:
    model, x = Residual().eval(), images()
    with torch.no_grad():
        model.conv1.weight[[3, 7]] *= 1e-3
        model.conv1.bias[[3, 7]] = 0.0
        model.conv2.weight[:, [3, 7]] *= 1e-3
    baseline, weight = model(x), model.conv1.weight
    compressor = pruning_of(model, x)
    with compressor.compress(_target(compressor, "conv1"), 2 / 12):
        torch.testing.assert_close(model.conv1.weight, weight[[0, 1, 2, 4, 5, 6, 8, 9, 10, 11]])
        torch.testing.assert_close(model(x), baseline, rtol=0, atol=1e-4)


class _Read(nn.Module):
    def __init__(self, kernel: int, groups: int = 1) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.first = nn.Conv2d(3, 8, 3)
        self.reader = nn.Conv2d(8, 6, kernel, groups=groups)
        self.head = nn.Linear(6, 4)

    def forward(self, values: Tensor) -> Tensor:
        scores: Tensor = self.head(self.reader(self.first(values).relu()).relu().mean((2, 3)))
        return scores


@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (3, 1), (1, 2)])
def test_channels_that_others_tell_of_go_first_however_large(kernel: int, groups: int) -> None:
    model, x = _Read(kernel, groups).eval(), images(8, 6)
    with torch.no_grad():
        for parameter in model.first.parameters():
            parameter[[1, 5]] = 4 * parameter[[0, 4]]  # in each half, so that groups of readers lose alike
    kept = pruning_of(model, x, criterion="least_error").kept_channels({"first": groups / 8})["first"]
    assert {0, 1} - set(kept) or {4, 5} - set(kept)
    assert set(range(8)) - set(kept) <= {0, 1, 4, 5}


def test_what_is_left_is_near_the_least_error_of_all_choices() -> None:
    """Beside every pair of channels, by least squares on all positions as numpy solves them."""
    model, x = _Read(1).eval(), images(8, 16)
    with torch.no_grad():
        rows = model.first(x).relu().movedim(1, -1).reshape(-1, 8).double().numpy()
        wanted = rows @ model.reader.weight.detach()[:, :, 0, 0].double().numpy().T
    rows, wanted = rows - rows.mean(0), wanted - wanted.mean(0)

    def error(kept: Sequence[int]) -> float:
        return float(np.linalg.lstsq(rows[:, list(kept)], wanted, rcond=None)[1].sum())

    errors = {kept: error(kept) for kept in itertools.combinations(range(8), 5)}
    found = {
        criterion: errors[pruning_of(model, x, criterion=criterion).kept_channels({"first": 3 / 8})["first"]]
        for criterion in ("least_error", "magnitude")
    }
    assert found["least_error"] <= 1.25 * min(errors.values())
    assert found["least_error"] < found["magnitude"]


def test_bn_scale_says_what_it_lacks() -> None:
    compressor = pruning_of(Residual().eval(), images(), criterion="bn_scale")
    with pytest.raises(MeasurementFailed, match="no BatchNorm"):
        compressor.compress(_target(compressor, "conv1"), 0.5).__enter__()


def test_shuffled_channels_are_not_applicable() -> None:
    compressor = pruning_of(ChannelShuffle().eval(), images())
    assert "rearranged" in compressor.not_applicable["conv1"]
    assert [target.layer for target in compressor.targets] == ["conv2"]


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.flatten(2).transpose(1, 2))  # (N, H·W, 8)
        return self.head(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))


def test_multihead_attention_keeps_its_width() -> None:
    compressor = pruning_of(_Attention().eval(), images())
    assert not compressor.targets
    assert "nn.MultiheadAttention" in compressor.not_applicable["embed"]
    assert "no head can be removed" in compressor.not_applicable["attention"]


def test_what_is_coupled_with_a_computed_or_shared_weight_is_left_out() -> None:
    model = Residual()
    weight_norm(model.conv2)
    reasons = pruning_of(model.eval(), images()).not_applicable
    assert "parametrization" in reasons["conv2"]
    assert "coupled with conv2" in reasons["stem"]
    tied = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(48, 5))
    tied[1].weight = tied[0].weight
    reasons = pruning_of(tied.eval(), images()).not_applicable
    assert "shared" in reasons["0"]
    assert "shared" in reasons["1"]


class _Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("no gradients here")
        return self.head(self.conv(x).mean((2, 3)))


def test_a_network_that_cannot_be_traced_has_reasons_for_every_layer() -> None:
    compressor = pruning_of(_Untraceable().eval(), images())
    assert not compressor.targets
    assert all("no gradients here" in reason for reason in compressor.not_applicable.values())
    assert set(compressor.not_applicable) == {"conv", "head"}


def test_only_groups_of_selected_layers_are_targets() -> None:
    model, x = Residual().eval(), images()
    request = request_of(model, x)
    selected = tuple(layer for layer in request.layers if layer.name in ("depthwise", "head"))
    compressor = PruningCompressor(
        PruningConfig(), CompressionRequest(model=model, layers=selected, calibration=request.calibration)
    )
    assert [target.members for target in compressor.targets] == [("stem", "conv2", "depthwise")]
    assert set(compressor.not_applicable) == {"head"}


def test_pruning_needs_an_image() -> None:
    model = Residual().eval()
    request = request_of(model, images())
    with pytest.raises(InvalidDataset, match="one image"):
        build_compressor(PruningConfig(), CompressionRequest(model=model, layers=request.layers, calibration=()))


def test_pruning_for_good_takes_channels_of_a_concatenation_at_once() -> None:
    model, x = Concat().eval(), images()
    applied = PruningCompressor(PruningConfig(), request_of(model, x)).prune({"left": 0.5, "right": 0.25, "mid": 0.0})
    assert set(applied) == {"left", "right"}
    assert (model.left.out_channels, model.right.out_channels) == (4, 12)
    assert model.mid.weight.shape == (8, 16, 3, 3)
    assert model(x).shape == (2, 5)
    model(x).sum().backward()
    assert model.left.weight.grad is not None
    assert math.isclose(applied["right"].achieved_level, 0.25)


def test_pruning_for_good_refuses_ratios_that_cannot_hold() -> None:
    request = request_of(Residual().eval(), images())
    with pytest.raises(InvalidSchedule, match="one pruning ratio"):
        PruningCompressor(PruningConfig(), request).prune({"stem": 0.5, "conv2": 0.25})
    with pytest.raises(InvalidSchedule, match="the model's outputs"):
        PruningCompressor(PruningConfig(), request).prune({"head": 0.5})
    with pytest.raises(InvalidSchedule, match="no such layer"):
        PruningCompressor(PruningConfig(), request).prune({"nowhere": 0.5})
