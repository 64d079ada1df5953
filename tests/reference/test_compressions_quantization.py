"""Quantization against torch.ao, torch's fake-quantize operators and numpy."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn
from torch.ao.quantization.observer import MinMaxObserver as AoMinMaxObserver
from torch.ao.quantization.observer import PerChannelMinMaxObserver

from senseapp.compressions import QuantizationConfig
from senseapp.compressions.quantization.activations import NUM_BINS, EntropyObserver, MseObserver, PercentileObserver
from senseapp.compressions.quantization.grid import affine_of, fake_quantize_input, scale_of
from tests.compressors import compressed_weight, compressor_of
from tests.quantized import quantized_weight

BITS = (2, 3, 4, 8)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("axis", [0, 1, None])
def test_rounding_per_channel_and_per_tensor_equals_torchs_operators(bits, axis):
    torch.manual_seed(bits)
    weight = torch.randn(6, 5, 3, 3)
    largest = 2 ** (bits - 1) - 1
    how = {"granularity": "tensor"} if axis is None else {"channel_axis": axis}
    scale = scale_of(weight, bits=bits, **how)
    if axis is None:
        expected = torch.fake_quantize_per_tensor_affine(weight, float(scale), 0, -largest, largest)
    else:
        zeros = torch.zeros(scale.numel(), dtype=torch.int32)
        expected = torch.fake_quantize_per_channel_affine(weight, scale.flatten(), zeros, axis, -largest, largest)
    assert torch.equal(quantized_weight(weight, bits=bits, **how), expected)


@pytest.mark.parametrize("bits", BITS)
def test_scales_are_those_of_torch_ao_on_the_same_symmetric_grid(bits):
    torch.manual_seed(bits)
    weight = torch.randn(6, 20)
    observer = PerChannelMinMaxObserver(
        ch_axis=0,
        dtype=torch.qint8,
        qscheme=torch.per_channel_symmetric,
        quant_min=-(2 ** (bits - 1) - 1),
        quant_max=2 ** (bits - 1) - 1,
    )
    observer(weight)
    expected, zero_points = observer.calculate_qparams()
    assert torch.allclose(scale_of(weight, bits=bits).flatten(), expected, rtol=1e-6)
    assert not zero_points.any()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shift", [-5.0, 0.0, 5.0])
def test_affine_parameters_and_rounding_are_those_of_torch_ao(bits, shift):
    torch.manual_seed(bits)
    values = torch.randn(1000) + shift
    observer = AoMinMaxObserver(dtype=torch.quint8, quant_min=0, quant_max=2**bits - 1)
    observer(values)
    expected_scale, expected_zero_point = observer.calculate_qparams()
    scale, zero_point = affine_of(float(values.min()), float(values.max()), bits=bits)
    assert scale == pytest.approx(float(expected_scale), rel=1e-6)
    assert zero_point == int(expected_zero_point)
    steps = np.clip(np.rint(values.numpy() / np.float32(scale)) + zero_point, 0, 2**bits - 1)
    rounded = fake_quantize_input(values, float(values.min()), float(values.max()), bits=bits)
    assert np.allclose(rounded.numpy(), (steps - zero_point) * scale, atol=1e-6)


def _float8_numbers() -> np.ndarray:
    """Every finite e4m3 number, from the definition: bias 7, no infinities, largest 448."""
    subnormal = [mantissa / 8 * 2.0**-6 for mantissa in range(8)]
    normal = [(1 + mantissa / 8) * 2.0 ** (exponent - 7) for exponent in range(1, 16) for mantissa in range(8)]
    positive = np.array(subnormal + normal[:-1])  # the last code is NaN
    return np.concatenate([-positive, positive])


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_float8_takes_the_nearest_number_of_the_format(granularity):
    torch.manual_seed(0)
    weight = torch.randn(4, 200)
    numbers = _float8_numbers()
    assert numbers.max() == 448
    largest = weight.abs().amax(1, keepdim=True) if granularity == "channel" else weight.abs().max()
    scaled = (weight.double() / largest.double() * 448).numpy()
    distance = np.abs(scaled[..., None] - numbers).min(-1)
    rounded = quantized_weight(weight, bits=8, number_format="fp8_e4m3", granularity=granularity)
    achieved = np.abs((rounded.double() / largest.double() * 448).numpy() - scaled)
    assert np.allclose(achieved, distance, atol=1e-4)


def test_compressed_layers_hold_what_numpy_computes_along_their_output_axis():
    torch.manual_seed(0)
    for module in (nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(3, 4, 3), nn.Linear(5, 4)):
        model = nn.Sequential(module)
        weight = module.weight.detach().numpy()
        axis = 1 if isinstance(module, nn.ConvTranspose2d) else 0
        expected = np.moveaxis(weight.copy(), axis, 0)
        for channel in expected:
            scale = np.abs(channel).max() / np.float32(7)
            channel[...] = np.rint(channel / scale) * scale
        found = compressed_weight(compressor_of(model, QuantizationConfig()), module.weight, 4)
        assert np.allclose(found.numpy(), np.moveaxis(expected, 0, axis), atol=1e-7)


def test_percentile_equals_numpys_to_a_bin():
    values = np.random.default_rng(0).normal(size=300_000).astype(np.float32)
    observer = PercentileObserver()
    for part in np.split(values, 3):
        observer.update(torch.from_numpy(part))
    low, high = observer.value_range(lambda x, _low, _high: x) or (0.0, 0.0)
    bin_width = (observer.high - observer.low) / len(observer.counts)
    assert abs(low - np.percentile(values, 0.005)) < 2 * bin_width
    assert abs(high - np.percentile(values, 99.995)) < 2 * bin_width


@pytest.mark.parametrize("bits", [2, 4])
def test_mse_range_is_as_good_as_a_search_on_the_values_themselves(bits):
    torch.manual_seed(0)
    values = torch.randn(4000).abs() ** 1.5
    observer = MseObserver()
    observer.update(values)
    chosen = observer.value_range(lambda x, low, high: fake_quantize_input(x, low, high, bits=bits)) or (0.0, 0.0)

    def error(high: float) -> float:
        return float((fake_quantize_input(values, 0.0, high, bits=bits) - values).square().mean())

    best = min(error(float(values.max()) * share / 200) for share in range(1, 201))
    assert error(chosen[1]) <= best * 1.05


@pytest.mark.parametrize("signed", [True, False])
def test_entropy_range_is_as_good_as_one_by_scipy_over_the_same_bins(signed):
    torch.manual_seed(1)
    values = torch.distributions.StudentT(3.0).sample((20_000,)) * (1 if signed else 0.4)
    values = values if signed else values.abs()
    zeros = torch.zeros(20_000)  # that an activation makes: they are held exactly, and are not to decide
    observer = EntropyObserver()
    observer.update(torch.cat([values, zeros]))

    def rounding(given: torch.Tensor, low: float, high: float) -> torch.Tensor:
        return fake_quantize_input(given, low, high, bits=4)

    counts, full = (
        torch.histc(values, NUM_BINS, observer.low, observer.high).double().numpy(),
        (min(float(values.min()), 0.0), float(values.max())),
    )
    centres = observer.centres.clamp(*full)

    def divergence(low: float, high: float) -> float:
        places = np.flatnonzero((centres.numpy() >= low) & (centres.numpy() <= high))
        exact = counts[places].copy()
        exact[0], exact[-1] = counts[: places[0] + 1].sum(), counts[places[-1] :].sum()
        steps, spread = rounding(centres, low, high).numpy()[places], np.zeros(len(places))
        for step in np.unique(steps):
            bins = (steps == step) & (counts[places] > 0)
            if bins.any():
                spread[bins] = counts[places][bins].sum() / bins.sum()
        return float(scipy.stats.entropy(exact, np.maximum(spread / spread.sum(), 1e-9)))

    chosen = observer.value_range(rounding) or (0.0, 0.0)
    assert full[0] <= chosen[0] <= 0.0 < chosen[1] <= full[1]
    shares = [step / 20 for step in range(1, 21)]
    lows = [full[0] * share for share in shares] if signed else [0.0]
    best = min(divergence(low, full[1] * share) for low in lows for share in shares)
    assert divergence(*chosen) <= best * 1.1
    assert divergence(*chosen) < divergence(*full) / 2
