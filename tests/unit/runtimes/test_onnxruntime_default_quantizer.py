"""The best file of onnxruntime's own quantizer, beside quantize_static called as its documentation says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from torch import nn

from senseapp.core.steps import OptionalSteps
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime import default_quantizer
from senseapp.runtimes.onnxruntime.default_quantizer import best_default
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second

IMAGES = torch.randn(24, 3, 12, 12, generator=torch.Generator().manual_seed(0))
FITTED, OTHERS = IMAGES[:16].split(8), IMAGES[16:]


@pytest.fixture(autouse=True)
def dot_products(monkeypatch):
    """Results are those of a processor that does not saturate, wherever tests run."""
    monkeypatch.setattr(default_quantizer, "saturates", lambda _opened: False)


@pytest.fixture(scope="module")
def network() -> bytes:
    """Its output channels have ranges 1,000 apart, which only scales by channel hold."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        layers[2].weight *= torch.logspace(0, -3, 8).view(-1, 1, 1, 1)
    return onnx_model(layers.eval(), IMAGES[:1])


def plainly_quantized(network: bytes, folder: Path, **settings: object) -> bytes:
    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(FITTED)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.left, None)
            return None if batch is None else {onnx.load_from_string(network).graph.input[0].name: batch.numpy()}

    (folder / "float.onnx").write_bytes(network)
    target = folder / "int8.onnx"
    quantize_static(folder / "float.onnx", target, Reader(), weight_type=QuantType.QInt8, **settings)
    return target.read_bytes()


def outputs(content: bytes) -> torch.Tensor:
    return RuntimeModel(content).run(OTHERS)


@pytest.fixture(scope="module")
def relative_error(network):
    """Each output counts alike, so that only scales by channel do."""
    reference = outputs(network)
    return lambda content: float(((outputs(content) - reference) / reference.std(0)).square().mean())


def test_scales_by_channel_win_where_channels_differ_and_the_file_is_that_of_a_plain_call(
    network, relative_error, tmp_path
):
    steps: list[str] = []
    found = best_default(network, FITTED, damage_of=relative_error, progress=steps.append)
    assert found is not None
    assert found.setting.startswith("quantize_static, per channel, ")
    assert ["7-bit weights" in step for step in steps] == [False] * 6 + [True]
    assert "tried in 7 settings" in found.notes[0]
    per_tensor = plainly_quantized(network, tmp_path, per_channel=False, activation_type=QuantType.QUInt8)
    per_channel = plainly_quantized(network, tmp_path, per_channel=True, activation_type=QuantType.QUInt8)
    assert relative_error(found.content) <= relative_error(per_channel) < relative_error(per_tensor)


@pytest.mark.parametrize(
    ("won", "settings", "words"),
    [
        ((False, "uint8", 127), {"per_channel": False}, "per tensor, unsigned activations, min-max"),
        ((True, "int8", 127), {"activation_type": QuantType.QInt8}, "per channel, signed activations, min-max"),
    ],
)
def test_a_setting_is_the_quantizers_of_that_name(network, tmp_path, won, settings, words):
    """A file that is told apart by its scales and types wins; a plain call gives the same bits."""
    per_channel, kind, _ = won

    def damage(content: bytes) -> float:
        graph = onnx.load_from_string(content).graph
        constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        zero = next(constants[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear")
        by_channel = any(name.endswith("_scale") and value.size > 1 for name, value in constants.items())
        return float((by_channel != per_channel) + (zero.dtype.name != kind))

    found = best_default(network, FITTED, damage_of=damage)
    usual = {"per_channel": True, "activation_type": QuantType.QUInt8} | settings
    assert found is not None
    assert found.setting == f"quantize_static, {words}"
    torch.testing.assert_close(outputs(found.content), outputs(plainly_quantized(network, tmp_path, **usual)))


@pytest.mark.parametrize(("share", "signed"), [(0.99, False), (0.9, True)])
def test_signed_activations_are_the_best_only_with_clearly_less_harm(network, share, signed):
    """They take longer, so one that does next to the same is no setting that an informed user has."""

    def damage(content: bytes) -> float:
        zeros = [each.data_type for each in onnx.load_from_string(content).graph.initializer]
        return 1.0 if onnx.TensorProto.UINT8 in zeros else share

    found = best_default(network, FITTED, damage_of=damage)
    assert found is not None
    assert found.setting.startswith(f"quantize_static, per channel, {'signed' if signed else 'unsigned'} activations")


def test_a_clipped_range_wins_where_one_value_is_far_beyond_all_others(network):
    reference = outputs(network)

    def error(content: bytes) -> float:
        return float((outputs(content) - reference).square().mean())

    batches = [each.clone() for each in FITTED]
    batches[0][0, 0, 0, 0] = 300.0
    found = best_default(network, batches, damage_of=error)
    assert found is not None
    assert found.setting.endswith(("entropy", "percentile"))
    assert error(found.content) < 0.8 * error(best_default_by_minmax(network, batches, error))


def best_default_by_minmax(network, batches, damage_of) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default_quantizer, "_HISTOGRAM_VALUES", 0)
        found = best_default(network, batches, damage_of=damage_of)
    assert found is not None
    assert found.setting.endswith("min-max")
    assert any("were not tried" in note for note in found.notes)
    return found.content


def test_histograms_of_large_activations_take_fewer_images_and_say_so(network, relative_error, monkeypatch):
    progress: list[str] = []
    monkeypatch.setattr(default_quantizer, "_HISTOGRAM_VALUES", 9 * 1700)
    best_default(network, FITTED, damage_of=relative_error, progress=progress.append)
    assert any("entropy on 8 images" in step or "entropy on 9 images" in step for step in progress)


def test_a_setting_that_fails_is_left_out_and_said(network, relative_error, monkeypatch):
    real, steps = default_quantizer.quantized, OptionalSteps()

    def quantized(*args, per_channel, **settings):
        if not per_channel:
            raise ValueError("it broke")
        return real(*args, per_channel=per_channel, **settings)

    monkeypatch.setattr(default_quantizer, "quantized", quantized)
    found = best_default(network, FITTED, damage_of=relative_error, trying=steps.trying)
    assert found is not None
    assert "tried in 5 settings" in found.notes[0]
    assert [note for note in steps.notes if "per tensor, unsigned activations, min-max; ValueError: it broke" in note]


def test_nothing_is_written_where_the_quantizer_fails(network, monkeypatch):
    def broken(*_args, **_settings):
        raise ValueError

    monkeypatch.setattr(default_quantizer, "quantized", broken)
    assert best_default(network, FITTED, damage_of=lambda _content: 0.0, trying=OptionalSteps().trying) is None


def test_seven_bits_are_kept_to_where_they_are_asked_for(network, relative_error):
    found = best_default(network, FITTED, damage_of=relative_error, reduce_range=True)
    assert found is not None
    assert "7-bit weights" in found.setting
    weights = [numpy_helper.to_array(each) for each in onnx.load_from_string(found.content).graph.initializer]
    assert max(int(np.abs(each).max()) for each in weights if each.dtype == np.int8 and each.ndim > 1) <= 64


def test_weights_of_7_bits_come_first_where_8_saturate(network, relative_error, monkeypatch):
    """There, 8 bits harm scales by channel, which use all of them: judged by these, scales by tensor would win."""

    def without_dot_products(content: bytes) -> float:
        constants = [numpy_helper.to_array(each) for each in onnx.load_from_string(content).graph.initializer]
        weights = [each for each in constants if each.dtype == np.int8 and each.ndim > 1]
        return relative_error(content) + 1000 * sum(int((np.abs(each) > 64).sum()) for each in weights)

    monkeypatch.setattr(default_quantizer, "saturates", lambda _opened: True)
    steps: list[str] = []
    found = best_default(network, FITTED, damage_of=without_dot_products, progress=steps.append)
    assert found is not None
    assert found.setting.startswith("quantize_static, per channel, ")
    assert "7-bit weights" in found.setting
    assert ["7-bit weights" in step for step in steps] == [True] * 6 + [False]
