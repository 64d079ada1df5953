"""Laws of rounding to few bits."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.compressions.quantization.activations import OBSERVERS, HistogramObserver
from senseapp.compressions.quantization.grid import affine_of, fake_quantize_input, scale_of
from tests.cases import examples
from tests.quantized import quantized_weight

BITS = st.integers(2, 8)
FLOATS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
MATRICES = st.lists(st.lists(FLOATS, min_size=4, max_size=4), min_size=1, max_size=5).map(torch.tensor)


@given(weight=MATRICES, bits=BITS, granularity=st.sampled_from(["channel", "tensor"]), axis=st.sampled_from([0, 1]))
def test_the_error_is_at_most_half_a_step_and_values_lie_on_the_grid(weight, bits, granularity, axis):
    scale = scale_of(weight, bits=bits, granularity=granularity, channel_axis=axis)
    rounded = quantized_weight(weight, bits=bits, granularity=granularity, channel_axis=axis)
    slack = 1e-6 * weight.abs().max()
    assert bool(((rounded - weight).abs() <= scale / 2 + slack).all())
    steps = (rounded / scale).round()
    assert float(steps.abs().max()) <= 2 ** (bits - 1) - 1
    assert torch.equal(steps * scale, rounded)


@given(weight=MATRICES, bits=BITS, number_format=st.sampled_from(["int", "fp8_e4m3"]))
def test_rounding_is_odd_and_rounding_twice_changes_no_more_than_float_error(weight, bits, number_format):
    once = quantized_weight(weight, bits=bits, number_format=number_format)
    twice = quantized_weight(once, bits=bits, number_format=number_format)
    assert torch.allclose(once, twice, rtol=1e-5)
    assert torch.equal(quantized_weight(-weight, bits=bits, number_format=number_format), -once)


@given(low=FLOATS, high=FLOATS, bits=BITS, values=st.lists(FLOATS, min_size=1, max_size=20).map(torch.tensor))
def test_inputs_inside_the_range_move_by_at_most_half_a_step_plus_the_zero_points_own(low, high, bits, values):
    low, high = min(low, high), max(low, high)
    scale, zero_point = affine_of(low, high, bits=bits)
    assert 0 <= zero_point <= 2**bits - 1
    rounded = fake_quantize_input(values, low, high, bits=bits)
    inside = (values >= min(low, 0)) & (values <= max(high, 0))
    assert bool(((rounded - values).abs()[inside] <= scale * 1.0001 + 1e-30).all())
    assert len(rounded.unique()) <= 2**bits


@settings(max_examples=examples(40), deadline=None)
@given(
    batches=st.lists(st.lists(FLOATS, min_size=1, max_size=8).map(torch.tensor), min_size=1, max_size=5),
    bits=BITS,
    observer=st.sampled_from(sorted(OBSERVERS)),
)
def test_a_range_is_finite_and_within_what_was_seen(batches, bits, observer):
    watching = OBSERVERS[observer]()
    for batch in batches:
        watching.update(batch)
    values = torch.cat(batches)
    low, high = watching.value_range(lambda x, a, b: fake_quantize_input(x, a, b, bits=bits)) or (math.nan, math.nan)
    slack = 1e-3 * float(values.abs().max()) + 1e-12
    assert min(float(values.min()), 0) - slack <= low <= high + slack
    assert high <= max(float(values.max()), 0) + slack
    if isinstance(watching, HistogramObserver):
        assert float(watching.counts.sum()) == len(values)
