"""Quantization on tiny layers."""

import numpy as np
import pytest
import torch
from torch import nn

from senseapp.compressions import QuantizationConfig
from senseapp.compressions.quantization.activations import NUM_BINS, OBSERVERS, HistogramObserver
from senseapp.compressions.quantization.grid import affine_of, fake_quantize_input, scale_of
from senseapp.core.errors import InvalidDataset, InvalidSpec, MeasurementFailed
from tests.compressors import compressor_of
from tests.quantized import quantized_weight


def _layer(module: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(module).eval()


def _affine(values: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return fake_quantize_input(values, low, high, bits=4)


def test_an_all_zero_channel_stays_zero_and_its_scale_is_usable():
    weight = torch.tensor([[0.0, 0.0], [1.0, -0.5]])
    assert torch.equal(quantized_weight(weight, bits=4)[0], torch.zeros(2))
    assert bool((scale_of(weight, bits=4) > 0).all())


def test_rounding_is_half_to_even():
    weight = torch.tensor([[7.0, 0.5, 1.5, 2.5, -0.5]])
    assert quantized_weight(weight, bits=4).tolist() == [[7, 0, 2, 2, 0]]


@pytest.mark.parametrize("bits", [0, 1, 17, 2.5])
def test_numbers_of_bits_that_do_not_exist_are_refused(bits):
    with pytest.raises(InvalidSpec, match="2 to 8"):
        quantized_weight(torch.ones(1, 1), bits=bits)
    with pytest.raises(InvalidSpec, match="2 to 8"):
        affine_of(0.0, 1.0, bits=bits)


def test_a_weight_that_is_not_finite_fails():
    model = _layer(nn.Linear(4, 4))
    model[0].weight.data[0, 0] = float("nan")
    compressor = compressor_of(model, QuantizationConfig())
    with pytest.raises(MeasurementFailed, match="not finite"), compressor.compress(compressor.targets[0], 4):
        pass
    assert int(torch.isnan(model[0].weight).sum()) == 1


def test_activations_are_rounded_over_the_calibrated_range_not_that_of_the_batch():
    model = _layer(nn.Linear(3, 3, bias=False))
    model[0].weight.data = torch.eye(3)
    config = QuantizationConfig(activations=True, observer="minmax")
    compressor = compressor_of(model, config, calibration=[torch.tensor([[-1.0, 0.0, 2.0]])])
    with compressor.compress(compressor.targets[0], 2):
        seen = model(torch.tensor([[-5.0, 0.6, 9.0]]))
    assert seen.tolist() == [[-1, 1, 2]]


@pytest.mark.parametrize(("given", "levels"), [("same", 3), ("8", 255), ("16", 65535)])
def test_activations_have_bits_of_their_own(given, levels):
    model, images = _layer(nn.Linear(2, 2, bias=False)), torch.tensor([[-1.0, 0.31], [0.71, 2.0]])
    model[0].weight.data = torch.eye(2)
    config = QuantizationConfig(activations=True, observer="minmax", activation_bits=given)
    compressor = compressor_of(model, config, calibration=[images])
    with torch.no_grad(), compressor.compress(compressor.targets[0], 2):
        found = model(images).numpy()
    step = 3 / levels
    assert found == pytest.approx(np.rint(images.numpy() / step) * step, abs=1e-5)


def test_activations_without_images_are_refused():
    with pytest.raises(InvalidDataset, match="calibration images"):
        compressor_of(_layer(nn.Linear(2, 2)), QuantizationConfig(activations=True))


@pytest.mark.parametrize("observer", list(OBSERVERS))
def test_inputs_that_are_not_finite_fail(observer):
    config = QuantizationConfig(activations=True, observer=observer)
    images = torch.tensor([[1.0, float("nan")], [0.0, 1.0]])
    compressor = compressor_of(_layer(nn.Linear(2, 2)), config, calibration=[images, torch.ones(1, 2)])
    with pytest.raises(MeasurementFailed, match="input is not finite"), compressor.compress(compressor.targets[0], 4):
        pass


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.attn(tokens, tokens, tokens, need_weights=False)[0]


def test_attention_inputs_are_rounded_once_and_out_proj_is_not_applicable():
    torch.manual_seed(0)
    model, tokens = _SelfAttention().eval(), torch.randn(2, 5, 8)
    compressor = compressor_of(model, QuantizationConfig(activations=True, observer="minmax"), calibration=[tokens])
    assert [target.layer for target in compressor.targets] == ["attn"]
    assert "weights only" in compressor.not_applicable["attn.out_proj"]
    low, high = float(tokens.min()), float(tokens.max())
    with torch.no_grad(), compressor.compress(compressor.targets[0], 4):
        outcome = model(tokens)
    weights_only = compressor_of(model, QuantizationConfig())
    with torch.no_grad(), weights_only.compress(weights_only.targets[0], 4):
        expected = model(_affine(tokens, low, high))
    assert torch.equal(outcome, expected)


def test_bfloat16_activations_keep_their_type():
    for number_format in ("int", "fp8_e4m3"):
        values = torch.randn(10).bfloat16()
        rounded = fake_quantize_input(values, -1.0, 1.0, bits=8, number_format=number_format)
        assert rounded.dtype == torch.bfloat16
        assert float((rounded - values.clamp(-1, 1)).abs().max()) < 0.05


def test_float8_input_clamps_to_the_range():
    rounded = fake_quantize_input(torch.tensor([-9.0, 0.0, 9.0]), -1.0, 2.0, bits=8, number_format="fp8_e4m3")
    assert rounded.tolist() == [-2, 0, 2]


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (1.0, 2.0), (-2.0, -1.0), (-1e-3, 5.0)])
def test_zero_is_always_exact(low, high):
    assert float(fake_quantize_input(torch.zeros(1), low, high, bits=4)) == 0.0


def test_histogram_counts_every_value_while_its_range_grows():
    torch.manual_seed(0)
    observer, batches = HistogramObserver(), [torch.randn(500) * 10.0**power for power in range(-2, 4)]
    for batch in batches:
        observer.update(batch)
    values = torch.cat(batches)
    assert observer.counts.shape == (NUM_BINS,)
    assert float(observer.counts.sum()) == len(values)
    assert observer.low <= float(values.min())
    assert float(values.max()) <= observer.high
    direct = torch.histc(values, NUM_BINS, observer.low, observer.high)
    assert float((observer.counts - direct).abs().sum()) <= 4  # edges of bins in float32


def test_histogram_counts_more_values_than_float32_can(monkeypatch):
    monkeypatch.setattr("senseapp.compressions.quantization.activations._CHUNK", 7)
    observer = HistogramObserver()
    observer.update(torch.linspace(-1, 1, 100))
    assert float(observer.counts.sum()) == 100
