"""Weights, biases and ranges of int8 files: what they cost in the runtime, beside plain rounding and exact sums."""

import itertools

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from torch import Tensor, nn

from senseapp.compressions.obs import damped, squared_error
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.call_times import saturates
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import default_int8
from senseapp.runtimes.onnxruntime.rounding import weights
from senseapp.runtimes.onnxruntime.rounding.products import products
from senseapp.runtimes.onnxruntime.rounding.qdq import Rounding, rounded_tensors
from senseapp.runtimes.onnxruntime.rounding.ranges import ranges, tensors_of
from senseapp.runtimes.onnxruntime.rounding.weights import DAMPING, rounded, rounded_products
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.runtimes.quantizers import Fitting
from tests.cases import examples, first_of

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second each time

IMAGES = torch.randn(64, 3, 12, 12, generator=torch.Generator().manual_seed(0)) + 0.5
FITTED, OTHERS = IMAGES[:32], IMAGES[32:]


class Block(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1, groups=groups)
        self.second = nn.Conv2d(8, 8, 1)

    def forward(self, given: Tensor) -> Tensor:
        return given + self.second(torch.relu(self.first(given)))


@pytest.fixture(scope="module")
def network() -> bytes:
    torch.manual_seed(0)
    layers = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU6(), Block(8), Block(2), nn.Conv2d(8, 8, 3, dilation=2, bias=False)),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )
    return onnx_model(layers.eval(), IMAGES[:1])


@pytest.fixture
def error_of(network):
    reference = RuntimeModel(network).run(OTHERS)
    return lambda content: float((RuntimeModel(content).run(OTHERS) - reference).square().mean())


def second_moments(groups: int, width: int, *, seed: int) -> Tensor:
    values = torch.randn(groups, 64, width, generator=torch.Generator().manual_seed(seed)) + 1
    return values.transpose(1, 2) @ values / 64


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.booleans(), st.sampled_from([3, 63, 127]))
def test_integers_stay_in_their_limits_and_do_no_more_harm_than_the_nearest(groups, rows, width, paired, largest):
    weight = torch.randn(groups, rows, width, generator=torch.Generator().manual_seed(width))
    second = second_moments(groups, width, seed=rows)
    least = torch.full((groups, rows, 1), 1e-12)
    steps, scale = rounded(weight, second, least_scale=least, largest=largest, paired=paired)
    assert bool((steps == steps.round()).all())
    assert float(steps.abs().max()) <= largest
    if paired:
        for one, other in zip(range(0, width - 1, 2), range(1, width, 2), strict=True):
            together = steps[..., one] + steps[..., other]
            same = steps[..., one].sign() == steps[..., other].sign()
            assert float((together.abs() * same).max()) <= 128
    else:
        usual = weight.abs().amax(2, keepdim=True) / largest
        nearest = (weight / usual).round() * usual
        minimised = damped(second, least=DAMPING)
        found = squared_error(weight - steps * scale, minimised)
        assert bool((found <= squared_error(weight - nearest, minimised) * 1.0001 + 1e-9).all())


def test_weights_fitted_to_few_inputs_do_less_harm_to_others_than_by_these_alone(monkeypatch):
    """Inputs of 24 columns, of which 32 are seen: their moments say more of themselves than of others."""

    def harm_to_others(share: float) -> float:
        monkeypatch.setattr(weights, "DAMPING", share)
        total = 0.0
        for seed in range(8):
            generator = torch.Generator().manual_seed(seed)
            mix, weight = (torch.randn(size, generator=generator) for size in ((1, 24, 24), (1, 16, 24)))
            seen, others = (torch.randn(1, count, 24, generator=generator) @ mix for count in (32, 4096))
            moments, true = (each.transpose(1, 2) @ each / each.shape[1] for each in (seen, others))
            steps, scale = rounded(weight, moments, least_scale=torch.full((1, 16, 1), 1e-12), largest=7, paired=False)
            total += float(squared_error(weight - steps * scale, true).sum())
        return total

    assert harm_to_others(DAMPING) < harm_to_others(0.01)


def test_a_scale_that_suits_a_row_of_few_columns_is_found(monkeypatch):
    """Kernels of 3 × 3: of many scales there is one at which most of nine weights lie near integers."""
    weight = torch.randn(64, 1, 9, generator=torch.Generator().manual_seed(0))
    second, least = second_moments(64, 9, seed=0), torch.full((64, 1, 1), 1e-12)

    def error() -> float:
        steps, scale = rounded(weight, second, least_scale=least, paired=False)
        return float(squared_error(weight - steps * scale, damped(second, least=DAMPING)).sum())

    found = error()
    monkeypatch.setattr(weights, "_NARROW", 0)
    assert found < 0.7 * error()


def test_the_scale_is_the_best_for_its_integers():
    weight, second = torch.randn(1, 8, 100, generator=torch.Generator().manual_seed(0)), second_moments(1, 100, seed=0)
    steps, scale = rounded(weight, second, least_scale=torch.full((1, 8, 1), 1e-12))
    minimised = damped(second, least=DAMPING)
    found, *others = (squared_error(weight - steps * scale * by, minimised) for by in (1, 0.999, 1.001))
    assert all(bool((found <= other).all()) for other in others)


def test_columns_in_turn_come_close_to_the_best_of_all_integers():
    weight, second = torch.tensor([[[0.9, -0.55, 0.31]]]), second_moments(1, 3, seed=2)
    steps, scale = rounded(weight, second, least_scale=torch.full((1, 1, 1), 0.3), largest=3, paired=False)
    every = torch.tensor(list(itertools.product(range(-3, 4), repeat=3)), dtype=torch.float32)
    errors = squared_error(weight - (every * scale[0])[None], second).flatten()
    assert float(squared_error(weight - steps * scale, second)) <= 1.5 * float(errors.min())


def test_channels_of_nothing_stay_so():
    weight = torch.tensor([[[0.0, 0.0], [1e-30, -1e-30], [1.0, 0.5]]])
    for second in (second_moments(1, 2, seed=0), torch.zeros(1, 2, 2)):
        steps, scale = rounded(weight, second, least_scale=torch.zeros(1, 3, 1))
        torch.testing.assert_close(steps * scale, weight, atol=0.005, rtol=0)


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_weights_of_fewer_bits_and_zeros_stay_as_they_are(bits):
    largest = 2 ** (bits - 1) - 1
    integers = torch.randint(-largest, largest + 1, (1, 6, 40), generator=torch.Generator().manual_seed(0)).float()
    integers[:, :, 0] = largest
    weight = integers * (0.1 + torch.rand(1, 6, 1, generator=torch.Generator().manual_seed(1)))
    steps, scale = rounded(weight, second_moments(1, 40, seed=0), least_scale=torch.zeros(1, 6, 1))
    torch.testing.assert_close(steps * scale, weight, rtol=1e-5, atol=0)
    sparse = torch.randn(1, 6, 40, generator=torch.Generator().manual_seed(2)) * (integers > 0)
    assert not bool(rounded(sparse, second_moments(1, 40, seed=0), least_scale=scale)[0][sparse == 0].any())


@pytest.mark.wide
@settings(max_examples=examples(25), deadline=None)
@given(st.integers(2, 8), st.integers(0, 10**6))
def test_rows_keep_the_integers_that_they_are_made_of(bits, seed):
    """Also where no weight of a row reaches the largest; pairs that would saturate are rounded anew."""
    generator, largest = torch.Generator().manual_seed(seed), 2 ** (bits - 1) - 1
    integers = torch.randint(-largest, largest + 1, (2, 6, 40), generator=generator).float()
    integers[:, 0] = (integers[:, 0] / 2).round()
    own_scale = 0.1 + torch.rand(2, 6, 1, generator=generator)
    args = integers * own_scale, second_moments(2, 40, seed=seed)
    steps, scale = rounded(*args, least_scale=torch.zeros(2, 6, 1), own=(integers, own_scale))
    pairs = integers.view(2, 6, 20, 2)
    together = torch.maximum(pairs.clamp_min(0).sum(3), -pairs.clamp_max(0).sum(3)).amax(2)
    kept = (steps == integers).all(2) & (scale == own_scale)[..., 0]
    assert torch.equal(kept, together <= 128)


def test_rows_times_the_matrix_are_what_the_node_makes(network):
    model = onnx.load_from_string(network)
    found = products(OnnxGraph(network))
    assert [(each.kind, each.groups, each.depthwise) for each in found] == [
        *(("Conv", 1, False), ("Conv", 8, True), ("Conv", 1, False), ("Conv", 2, False), ("Conv", 1, False)),
        *(("Conv", 1, False), ("Gemm", 1, False)),
    ]
    made = {node.name: node.output[0] for node in model.graph.node}
    wanted = {each.input for each in found} | {made[each.node] for each in found}
    seen = next(tensors_of(network, [FITTED[:2]], sorted(wanted)))
    for each in found:
        rows = each.rows(seen[each.input], 10**6, torch.Generator().manual_seed(0))
        outputs = (rows @ each.matrix(each.values).transpose(1, 2)).movedim(1, 0).flatten(1)  # (S, O)
        outputs = outputs + (0 if each.offsets is None else each.offsets)
        expected = seen[made[each.node]].movedim(1, -1).reshape(-1, outputs.shape[1])
        torch.testing.assert_close(outputs.sort(0).values, expected.sort(0).values, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(each.tensor(each.matrix(each.values)), each.values)


@pytest.mark.parametrize(
    ("inputs", "kernel", "groups"), first_of([(63, 1, 1), (8, 3, 4), (64, 1, 1), (3, 3, 1), (1, 3, 32)])
)
def test_no_processor_saturates(inputs, kernel, groups):
    """Loud images and weights, summed by the runtime's integers as by floats that hold every sum exactly."""
    torch.manual_seed(0)
    layer = nn.Conv2d(inputs * groups, 32, kernel, groups=groups)
    with torch.no_grad():
        layer.weight.copy_(layer.weight.sign() * layer.weight.abs().clamp_min(0.8 * layer.weight.abs().max()))
    images = torch.rand(4, inputs * groups, 8, 8) * 0.3 + 0.7
    exported = onnx_model(nn.Sequential(layer, nn.Conv2d(32, 2, 1)).eval(), images[:1])
    writer = Int8Writer(exported, [images])
    found = writer.rounding.ranges
    nodes = products(OnnxGraph(exported))[:1]
    fitted = rounded_products(exported, [images], nodes, found, progress=lambda _sentence: None)
    writer.rounding = Rounding(ranges=found, products=fitted)
    graph = OnnxGraph(writer.write())
    name = OnnxGraph(exported).nodes[0].output[0]
    step = float(graph.array(f"{name}_scale"))
    graph.return_values([f"{name}_QuantizeLinear_Output"])
    codes = (RuntimeModel(graph.content(), fused=fused).run(images) for fused in (True, False))
    computed, meant = (step * each.float() for each in codes)
    assert float((computed - meant).abs().max()) <= 1.01 * step  # a tie may be rounded either way
    assert float((computed != meant).float().mean()) < 0.01


def test_fitted_rounding_does_less_harm_than_the_quantizer_as_it_comes(network, error_of):
    writer, usual = Int8Writer(network, [FITTED]), error_of(default_int8(network, [FITTED]).content)
    writer.fit(Fitting(batches=[FITTED]))
    content = writer.write()
    onnx.checker.check_model(onnx.load_from_string(content))
    share = 1 / 4 if saturates() else 0.9  # of what is lost where products of 8 bits saturate, or not
    assert error_of(content) < share * usual
    assert set(writer.rounding.products) == {each.node for each in products(OnnxGraph(network))}


def test_no_pixel_is_clipped(network):
    """Clipping bright pixels would suit dark pictures only."""
    images = FITTED.clone()
    images[0, 0, 0, 0] = 40.0
    name = OnnxGraph(network).inputs[0]
    assert ranges(network, [images], [name], "mse") == {name: (float(images.min()), 40.0)}


@pytest.mark.parametrize(("reduce_range", "largest", "words"), [(False, 127, ""), (True, 64, "7-bit weights, ")])
def test_weights_of_the_usual_quantizer_have_7_bits_where_8_saturate(network, reduce_range, largest, words):
    made = default_int8(network, FITTED.split(16), reduce_range=reduce_range)
    stored = map(numpy_helper.to_array, onnx.load_from_string(made.content).graph.initializer)
    found = [each.astype(int) for each in stored if each.dtype == np.int8 and each.ndim == 4]
    assert max(int(np.abs(each).max()) for each in found) == largest
    assert made.setting == f"quantize_static, per channel, unsigned activations, {words}min-max"


def test_biases_keep_the_mean_of_outputs(network):
    found = ranges(network, [FITTED], rounded_tensors(network), "minmax")
    nodes = products(OnnxGraph(network))
    fitted = rounded_products(network, [FITTED], nodes, found, progress=lambda _sentence: None)
    first = fitted[nodes[0].node]
    product, (low, high) = nodes[0], found[nodes[0].input]
    seen = np.round((FITTED.numpy() - low) / ((high - low) / 255)) * ((high - low) / 255) + low
    before = torch.nn.functional.conv2d(FITTED, product.values, product.offsets, stride=2)
    weight, bias = torch.from_numpy(first.integers * first.spread), torch.from_numpy(first.bias)
    after = torch.nn.functional.conv2d(torch.from_numpy(seen).float(), weight, bias, stride=2)
    torch.testing.assert_close(after.mean((0, 2, 3)), before.mean((0, 2, 3)), atol=2e-3, rtol=0)


def test_what_passes_between_nodes_in_float_is_not_rounded(network):
    additions = [node.name for node in OnnxGraph(network).nodes if node.op_type == "Add"]
    found = OnnxGraph(Int8Writer(network, [FITTED]).write(but=additions))
    first, second = (next(node for node in found.nodes if node.name == name) for name in additions)
    assert first.output[0] in second.input
    assert found.maker(found.outputs[0]).op_type == "Gemm"
    assert sum(node.op_type == "QuantizeLinear" and node.input[0] == first.output[0] for node in found.nodes) == 1
