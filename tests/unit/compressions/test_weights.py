"""Finding weights, and the promise that they come back untouched."""

import dataclasses

import pytest
import torch
from timm.layers import ScaledStdConv2d
from torch import nn
from torch.nn.utils import parametrizations

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.compressions.base import find_weights
from tests.compressors import compressor_of, profiles_of

CONFIGS = (
    (SparsityConfig(), 0.5),
    (SparsityConfig(granularity="filter", criterion="squared_magnitude"), 0.5),
    (SparsityConfig(granularity="2:4"), 0.5),
    (SparsityConfig(criterion="wanda"), 0.5),
    (QuantizationConfig(), 4),
    (QuantizationConfig(number_format="fp8_e4m3", granularity="tensor", activations=True), 8),
    (QuantizationConfig(activations=True, observer="mse"), 3),
)


class _BodyError(Exception):
    pass


def _conv(dtype: torch.dtype = torch.float32, memory_format: torch.memory_format = torch.contiguous_format):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 12, 3)).eval().to(dtype=dtype, memory_format=memory_format)


def _state_of(parameter: nn.Parameter) -> tuple[object, ...]:
    return id(parameter), parameter.data_ptr(), parameter.stride(), parameter.dtype, parameter.requires_grad


@pytest.mark.parametrize(
    ("dtype", "memory_format", "raises"),
    [(torch.float32, torch.contiguous_format, False), (torch.bfloat16, torch.channels_last, True)],
)
@pytest.mark.parametrize(("config", "level"), CONFIGS)
def test_weight_and_hooks_come_back_also_after_an_error(config, level, dtype, memory_format, raises):
    model = _conv(dtype, memory_format)
    parameter, images = model[0].weight, torch.randn(2, 8, 5, 5)
    before, values = _state_of(parameter), parameter.detach().clone()
    expected = model(images.to(dtype))
    compressor = compressor_of(model, config, calibration=[images])
    try:
        with compressor.compress(compressor.targets[0], level):
            assert not torch.equal(parameter, values)
            assert (parameter.dtype, parameter.stride()) == (dtype, values.stride())
            assert not torch.equal(model(images.to(dtype)), expected)
            if raises:
                raise _BodyError
    except _BodyError:
        pass
    assert _state_of(parameter) == before
    assert torch.equal(parameter, values)
    assert torch.equal(model(images.to(dtype)), expected)
    assert not model[0]._forward_pre_hooks


def test_swapping_inside_inference_mode_leaves_a_trainable_parameter():
    model = _conv()
    compressor = compressor_of(model, SparsityConfig())
    with torch.inference_mode(), compressor.compress(compressor.targets[0], 0.5):
        assert not model[0].weight.is_inference()
        model(torch.randn(1, 8, 5, 5))
    model(torch.randn(1, 8, 5, 5)).sum().backward()
    assert model[0].weight.grad is not None


def test_two_layers_compressed_at_once_both_come_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    values = [layer.weight.detach().clone() for layer in model]
    compressor = compressor_of(model, SparsityConfig())
    first, second = compressor.targets
    with compressor.compress(first, 0.5), compressor.compress(second, 0.25):
        assert [int((layer.weight == 0).sum()) for layer in model] == [15, 5]
    assert all(torch.equal(layer.weight, value) for layer, value in zip(model, values, strict=True))


def test_tied_weights_are_measured_once_and_name_every_owner():
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 4), "other": nn.Linear(4, 4)})
    model["second"].weight = model["first"].weight
    weights, not_applicable = find_weights(model, profiles_of(model))
    assert list(weights) == ["first", "other"]
    assert weights["first"].target.modules == ("first", "second")
    assert not_applicable == {"second": "The weight is shared with first, which is measured for both."}


@pytest.mark.parametrize(
    ("derive", "parameter"),
    [
        (parametrizations.weight_norm, "0.weight"),
        (parametrizations.weight_norm, "0.parametrizations.weight.original1"),
        (torch.nn.utils.spectral_norm, "0.weight_orig"),
        (torch.nn.utils.spectral_norm, "0.weight"),
    ],
)
def test_a_derived_weight_is_not_applicable(derive, parameter):
    model = nn.Sequential(nn.Linear(4, 4))
    (profile,) = profiles_of(model)
    derive(model[0])
    weights, not_applicable = find_weights(model, [dataclasses.replace(profile, parameter=parameter)])
    assert not weights
    assert "remove the parametrization" in not_applicable["0"]


def test_a_layer_that_never_runs_is_not_applicable():
    model = nn.Sequential(nn.Linear(4, 4))
    weights, not_applicable = find_weights(model, [dataclasses.replace(profiles_of(model)[0], runs=False)])
    assert not weights
    assert "was not used in a forward pass" in not_applicable["0"]


def test_weight_standardised_convolutions_and_attention_are_found():
    model = nn.ModuleDict({"std": ScaledStdConv2d(4, 8, 3), "attn": nn.MultiheadAttention(8, 2)})
    weights, _ = find_weights(model, profiles_of(model))
    assert [(name, weight.attribute) for name, weight in weights.items()] == [
        ("std", "weight"),
        ("attn", "in_proj_weight"),
        ("attn.out_proj", "weight"),
    ]
    assert weights["attn"].parameter is model["attn"].in_proj_weight


def test_a_cast_after_the_search_is_seen():
    model = _conv()
    compressor = compressor_of(model, QuantizationConfig())
    model.to(torch.bfloat16)
    with compressor.compress(compressor.targets[0], 4):
        assert model[0].weight.dtype == torch.bfloat16
