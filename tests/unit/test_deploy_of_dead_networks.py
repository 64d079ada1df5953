"""Deployment of networks in which parts are dead, and what happens where an improvement of the file fails."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from senseapp.compressions import QuantizationConfig
from senseapp.core.errors import OutOfMemory
from senseapp.data.images import TensorImages
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.prove.deploy import Deployed, original_source, proven_source
from senseapp.prove.deploy import deploy as deploy_source
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.prove import prove
from senseapp.prove.repair_choice import measured
from senseapp.reconstruct.write import onnx_model
from senseapp.records.deployment import DeploySettings
from senseapp.records.measurement import change_in
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.rounding.products import products
from senseapp.runtimes.onnxruntime.rounding.qdq import Rounding
from senseapp.runtimes.onnxruntime.rounding.weights import rounded_products
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from tests.cases import first_of
from tests.small_evaluator import evaluator_of, schedule_of
from tests.small_models import images_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_times")]  # an export takes a second each time

INT8, FLOAT = DeploySettings(kind="int8"), DeploySettings(kind="float")
BITS = QuantizationConfig()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, given: Tensor) -> Tensor:
        return torch.relu(given + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(given))))))


class Network(nn.Module):
    """A stem, residual blocks, a depthwise convolution and a classifier."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(*(Block() for _ in range(blocks)))
        self.depthwise, self.head = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 6)

    def forward(self, given: Tensor) -> Tensor:
        return self.head(torch.relu(self.depthwise(self.blocks(torch.relu(self.stem(given))))).mean((2, 3)))


def a_network(blocks: int = 1) -> Network:
    torch.manual_seed(0)
    network = Network(blocks).eval()
    with torch.no_grad():
        network.head.weight.mul_(20)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.bias.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 2)
    return network


def zero(*tensors: Tensor) -> None:
    for tensor in tensors:
        tensor.data.zero_()


def with_dead_blocks() -> Network:
    """As training, pruning and zero initialisation leave them, biases behind them at work."""
    network = a_network(blocks=4)
    never_open, last_norm, inner_norm, next_to_nothing = network.blocks
    never_open.bn1.bias.data.fill_(-1000)
    zero(last_norm.bn2.weight, last_norm.bn2.bias, inner_norm.bn1.weight, inner_norm.bn1.bias)
    zero(network.stem.weight.data[:2], next_to_nothing.bn2.bias)
    next_to_nothing.bn2.weight.data.mul_(1e-41)
    return network


def with_layers_of_zeros() -> Network:
    network = a_network(blocks=2)
    nothing_read, odd_norms = network.blocks
    zero(nothing_read.conv1.weight, nothing_read.conv2.weight)
    zero(odd_norms.conv1.weight.data[:2], odd_norms.bn1.running_var.data[:2])  # of channels that are always 0
    zero(network.depthwise.weight.data[:3], network.depthwise.bias.data[:3])
    odd_norms.bn2.weight.data.neg_()
    return network


def deploy(evaluator: ScheduleEvaluator, settings: DeploySettings) -> Deployed:
    """Make the file of the original in int8; in float, of what is proven of all layers in 4 bits."""
    if settings.kind != "float":
        return deploy_source(evaluator, original_source(evaluator, OPERATIONS), settings)
    schedule = schedule_of(evaluator, "quantization", 4.0)
    proven = prove(evaluator, schedule, repair=False, adapting="minutes")
    return deploy_source(evaluator, proven_source(evaluator, OPERATIONS, proven), settings)


def kl(found: Deployed) -> float:
    change = change_in(found.record.figures["file"].changes, "kl")
    assert change is not None
    return change.delta


def assert_does_the_same(content: bytes, network: nn.Module, images: Tensor) -> None:
    """What onnxruntime makes of a file beside torch: within two percent, in the mean square."""
    for each in onnx.load_from_string(content).graph.initializer:
        assert np.isfinite(numpy_helper.to_array(each).astype(np.float64)).all(), each.name
    with torch.no_grad():
        wanted = network(images)
    error = RuntimeModel(content).run(images) - wanted
    assert float(error.square().mean()) < 0.02**2 * float(wanted.square().mean())


@pytest.mark.parametrize("make", first_of([with_layers_of_zeros, with_dead_blocks]))
def test_a_network_with_dead_parts_is_deployed_in_int8(make: Callable[[], Network]) -> None:
    network = make()
    found = deploy(evaluator_of(network, BITS), INT8)
    assert not [note for note in found.record.notes if "failed" in note]
    assert set(found.record.figures) == {"file", "original", "int8", "default"}
    assert_does_the_same(found.content, network, images_for(16, seed=4).images)


@pytest.mark.wide
def test_images_that_are_all_zero_are_deployed_and_biases_kept() -> None:
    """Ranges are those of biases alone; on such images the file answers as the network does."""
    network, images = a_network(), torch.zeros(40, 3, 8, 8)
    found = deploy(evaluator_of(network, BITS, curves=TensorImages(images)), INT8)
    assert_does_the_same(found.content, network, images[:1])


def test_a_layer_behind_nothing_keeps_its_bias_in_int8() -> None:
    """A bias is counted in steps of the input's scale times the weight's, and an input without a range has a scale."""
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(144, 2)).eval()
    zero(network[0].weight, network[0].bias)
    exported, batches = onnx_model(network, torch.zeros(1, 3, 8, 8)), [images_for(8).images]
    found = products(OnnxGraph(exported))
    writer = Int8Writer(exported, batches)
    inputs = {**writer.rounding.ranges, found[0].input: (-4.0, 4.0), found[1].input: (0.0, 0.0)}
    fitted = rounded_products(exported, batches, found, inputs, progress=lambda _sentence: None)
    writer.rounding = Rounding(ranges=inputs, products=fitted)
    content = writer.write()
    writer.rounding = Rounding(ranges=inputs | {found[1].input: (0.0, 1e-9)}, products=fitted)
    too_fine = onnx.load_from_string(writer.write()).graph.initializer
    bias = network[2].bias.detach()
    assert float(bias.abs().min()) > 0.01
    graph = OnnxGraph(content)
    graph.return_values([next(each.input[0] for each in graph.nodes if each.op_type == "Gemm")])
    made = RuntimeModel(graph.content()).run(batches[0]).view(8, 4, -1)
    torch.testing.assert_close(made, bias[None, :, None].expand_as(made), rtol=0.02, atol=0.01)
    biases = (numpy_helper.to_array(each) for each in too_fine if each.name.endswith("bias_quantized"))
    (steps,) = (each for each in biases if np.abs(each.astype(float)).max() > 2**30)
    np.testing.assert_allclose(steps, 2.0**31 * np.sign(bias.numpy()), rtol=1e-3)  # as far as int32 holds it


def broken(*_args: object, **_settings: object) -> Any:
    raise ValueError("it broke.")


FAILING = {
    "each improvement of an int8 file": (
        DeploySettings(kind="mixed"),
        {
            "senseapp.runtimes.onnxruntime.int8.rounded_products": "weights fitted to the images",
            "senseapp.runtimes.onnxruntime.operations.OnnxRuntime.time_layers": "the search for parts that int8 harms",
        },
    ),
    "adapted weights and small types": (
        FLOAT,
        {
            "senseapp.runtimes.onnxruntime.operations.with_quantized_weights": "weights stored as integers",
            "senseapp.reconstruct.adapt.weights.AdaptedLayer.adapt": "the repair 'Weights updated, statistics matched'",
        },
    ),
}


@pytest.mark.parametrize("case", first_of(FAILING))
def test_an_improvement_that_fails_is_left_out_with_a_note(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, parts = FAILING[case]
    for target in parts:
        monkeypatch.setattr(target, broken)
    monkeypatch.setattr("senseapp.prove.mixed_precision._UNSEEN", 0.0)  # any damage is worth a part in float
    found = deploy(evaluator_of(a_network(), BITS), settings)
    said = " ".join(found.record.notes)
    for name in parts.values():
        assert f"Left out, since it failed: {name}; ValueError: it broke." in said
    assert kl(found) < (0.2 if settings is FLOAT else 0.02)
    onnx.checker.check_model(onnx.load_from_string(found.content))


def test_a_repair_that_cannot_begin_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("senseapp.prove.evaluator.matching_of", broken)
    evaluator = evaluator_of(a_network(), BITS)
    applied = evaluator.apply(schedule_of(evaluator, "quantization", 4.0))
    found = measured(evaluator, applied, "kl", repair=True)
    assert found.delivered == "compressed"
    assert found.reason == "Delivered without repair. Left out, since it failed: repair; ValueError: it broke."


def test_a_cancel_a_lack_of_memory_and_the_error_of_the_plain_file_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cancelled(Exception):
        pass

    def report(sentence: str) -> None:
        if "Finding the ranges of activations" in sentence:
            raise Cancelled

    def too_large(*_args: object, **_settings: object) -> None:
        raise OutOfMemory("This needs more memory than there is.")

    with pytest.raises(Cancelled):
        deploy(evaluator_of(a_network(), BITS, progress=report), INT8)
    evaluator = evaluator_of(a_network(), BITS)
    with monkeypatch.context() as patch:
        patch.setattr("senseapp.runtimes.onnxruntime.int8.fitted_rounding", too_large)
        with pytest.raises(OutOfMemory):
            deploy(evaluator, INT8)
    monkeypatch.setattr("senseapp.runtimes.onnxruntime.int8.QdqFiles", broken)
    with pytest.raises(ValueError, match="it broke"):
        deploy(evaluator, INT8)
