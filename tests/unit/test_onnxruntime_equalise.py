"""Equalised channels: the same network in float, and what a planted imbalance costs in int8 with and without them."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.rounding.calibration import tensors_of
from senseapp.runtimes.onnxruntime.rounding.equalise import better_equalised, equalised
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from tests.cases import first_of

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second each time

IMAGES = torch.randn(48, 3, 12, 12, generator=torch.Generator().manual_seed(0)) + 0.5
FITTED, OTHERS = IMAGES[:24], IMAGES[24:]


class Residual(nn.Module):
    """Two additions, a depthwise and a grouped convolution, and an activation that no factor goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.grouped, self.narrow = nn.Conv2d(8, 8, 1, groups=2), nn.Conv2d(8, 8, 1, bias=False)
        self.wide, self.head = nn.Conv2d(8, 12, 1), nn.Linear(12, 5)

    def forward(self, given: Tensor) -> Tensor:
        given = nn.functional.relu6(self.stem(given))
        given = given + self.grouped(torch.relu(self.depthwise(given)))
        given = given + self.narrow(nn.functional.silu(given))
        return self.head(torch.relu(self.wide(given)).mean((2, 3)))


class Chain(nn.Sequential):
    """What a factor goes through from end to end, a channel of which is loud and hardly read."""

    def __init__(self, loud: float = 1.0) -> None:
        super().__init__(
            *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU6()),
            *(nn.Conv2d(8, 8, 1, groups=2), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
        )
        with torch.no_grad():
            self[4].weight[0] *= loud
            self[4].bias[0] *= loud
            self[6].weight[:, 0] /= loud


class Tokens(nn.Module):
    """A norm whose scale a linear layer reads, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 4, stride=4), nn.LayerNorm(6)
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 4)
        with torch.no_grad():
            self.norm.weight[0] *= 40

    def forward(self, given: Tensor) -> Tensor:
        tokens = self.stem(given).flatten(2).transpose(1, 2)
        tokens = tokens + self.first(self.norm(tokens))[..., :6]
        return self.second(nn.functional.gelu(self.first(self.norm(tokens)))).mean(1)


class ChannelsLast(nn.Module):
    """As ConvNeXt has it: as many channels as rows, so that one axis could be taken for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 2, stride=2), nn.LayerNorm(6)
        self.wide, self.narrow, self.head = nn.Linear(6, 12), nn.Linear(12, 6), nn.Conv2d(6, 4, 6)
        with torch.no_grad():
            self.norm.weight[0] *= 40

    def forward(self, given: Tensor) -> Tensor:
        given = self.stem(given)
        wide = torch.relu(self.wide(self.norm(given.permute(0, 2, 3, 1))))
        return self.head(given + self.narrow(wide).permute(0, 3, 1, 2)).flatten(1)


class Dead(Chain):
    """Channels that are always 0 or next to it, and layers whose weights are: nothing is divided by their ranges."""

    def __init__(self) -> None:
        super().__init__()
        for layer, scale in ((self[0], 0.0), (self[4], 1e-42), (self[6], 0.0)):
            layer.weight.data.mul_(scale)
            layer.bias.data.mul_(scale)
        self[0].weight.data[:4] = 0.1


class AlongRows(nn.Module):
    """A matrix product along the last axis of what a convolution made: no factor for each channel goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.rows, self.head = nn.Conv2d(3, 6, 2, stride=2), nn.Linear(6, 6, bias=False), nn.Conv2d(6, 4, 6)

    def forward(self, given: Tensor) -> Tensor:
        return self.head(torch.relu(self.rows(torch.relu(self.stem(given))))).flatten(1)


def exported(model: nn.Module) -> bytes:
    return onnx_model(model.eval(), IMAGES[:1])


@cache
def built(kind: type[nn.Module]) -> bytes:
    torch.manual_seed(0)
    return exported(kind())


@pytest.mark.parametrize("with_weights", first_of([True, False]))
@pytest.mark.parametrize("kind", [Residual, Chain, Tokens, ChannelsLast, AlongRows, Dead])
def test_the_network_stays_the_same_in_float(kind, with_weights):
    network = built(kind)
    found = equalised(network, [FITTED], with_weights=with_weights)
    onnx.checker.check_model(onnx.load_from_string(found))
    for images in (FITTED, OTHERS):
        torch.testing.assert_close(
            RuntimeModel(found).run(images), RuntimeModel(network).run(images), rtol=1e-4, atol=1e-5
        )


def largest(network: bytes, tensor: str) -> Tensor:
    values = torch.cat([each[tensor] for each in tensors_of(network, [FITTED], [tensor])])
    return values.abs().amax((0, 2, 3))


def test_channels_come_to_equal_ranges_where_a_depthwise_convolution_reads_them():
    network = built(Chain)
    tensor = next(node.output[0] for node in onnx.load_from_string(network).graph.node if node.op_type == "Relu")
    before, after = largest(network, tensor), largest(equalised(network, [FITTED], with_weights=False), tensor)
    assert float(before.min() / before.max()) < 0.7
    torch.testing.assert_close(after, before.max().expand(8), rtol=1e-4, atol=1e-4)


def test_what_is_not_linear_in_each_channel_is_left_alone():
    """A sum over channels, an output, a weight that two nodes share and a clip from below."""
    weight = np.eye(3, dtype=np.float32)[:, :, None, None] * np.array([1, 9, 81], np.float32)[:, None, None, None]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="one"),
        helper.make_node("Clip", ["a", "low", "high"], ["b"], name="clip"),
        helper.make_node("Conv", ["b", "own"], ["c"], name="two"),
        helper.make_node("ReduceMean", ["c", "axes"], ["y"], name="sum", keepdims=1),
    ]
    values = {"w": weight, "own": weight, "low": np.float32(0.1), "high": np.float32(6), "axes": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 12, 12])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(value), name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    network = model.SerializeToString()
    found = onnx.load_from_string(equalised(network, [FITTED], with_weights=False)).graph.initializer
    for each in found:
        np.testing.assert_array_equal(numpy_helper.to_array(each), values[each.name])


def test_a_loud_channel_is_made_up_for_and_a_balanced_network_stays_as_it_is():
    torch.manual_seed(0)
    network = exported(Chain(loud=300.0))
    reference = RuntimeModel(network).run(OTHERS)

    def damage_of(content: bytes) -> float:
        return float((RuntimeModel(content, fused=False).run(OTHERS) - reference).square().mean())

    found = better_equalised(network, [FITTED], damage_of=damage_of)
    files = []
    for each in (network, found):
        with Int8Writer(each, [FITTED]) as writer:
            files.append(damage_of(writer.write()))
    assert files[1] < files[0] / 4
    assert better_equalised(network, [FITTED], damage_of=lambda _content: 1.0) == network


class Clipped(nn.Module):
    """A ReLU6 between two convolutions; one channel is small on the calibration images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1)
        with torch.no_grad():
            self.first.weight[0] /= 50
            self.second.weight[:, 0] *= 50

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.first(images).clamp(0, 6)).mean((2, 3))


@pytest.mark.parametrize("with_weights", [False, True])
def test_what_is_clipped_stays_as_other_images_would_be_clipped_earlier(with_weights):
    torch.manual_seed(0)
    network = exported(Clipped())
    found, brighter = equalised(network, [FITTED], with_weights=with_weights), 20 * OTHERS
    outputs = [RuntimeModel(each, fused=False).run(brighter) for each in (network, found)]
    torch.testing.assert_close(*outputs)
