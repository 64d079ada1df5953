"""A network whose weights alone differ is written as a fresh export would write it; any other is exported anew."""

import copy

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import activations_out_of_place
from senseapp.reconstruct.write import onnx_copy
from senseapp.runtimes.onnxruntime import operations
from senseapp.runtimes.onnxruntime.operations import OnnxTemplate

IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Network(nn.Module):
    """A convolution and a norm that the exporter folds, tied linear layers that it transposes, a constant, a scale."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.first = self.second = nn.Linear(6, 6)
        self.head = nn.Linear(6, classes)
        self.register_buffer("scale", torch.full((1,), 1.5), persistent=False)
        self.factor = torch.full((1,), 0.5)

    def forward(self, images: Tensor) -> Tensor:
        pooled = self.norm(self.conv(images)).mean((2, 3)) * self.scale * self.factor
        out: Tensor = self.head(self.second(self.first(pooled).relu()))
        return out


def randomized(network: Network, seed: int) -> Network:
    generator, other = torch.Generator().manual_seed(seed), copy.deepcopy(network)
    with torch.no_grad():
        for each in (*other.parameters(), *other.buffers()):
            if each.is_floating_point():
                each.copy_(torch.rand(each.shape, generator=generator))
    return other


@pytest.fixture(scope="module")
def network() -> Network:
    return Network().eval()


@pytest.fixture
def exports(monkeypatch) -> list[nn.Module]:
    """Networks that are exported, though a template is there."""
    exported: list[nn.Module] = []

    def export(model: nn.Module, example: Tensor) -> bytes:
        exported.append(model)
        return b"exported anew"

    monkeypatch.setattr(operations, "onnx_copy", export)
    return exported


@pytest.fixture(scope="module")
def template(network) -> OnnxTemplate:
    return OnnxTemplate(network, IMAGES[:1])


def without_names_of_nodes(content: bytes) -> bytes:
    """Return a network whose nodes are called nothing: the exporter numbers those that it fuses."""
    model = onnx.load_from_string(content)
    for node in model.graph.node:
        node.name = ""
    return model.SerializeToString()


@pytest.mark.wide
def test_other_weights_give_what_their_own_export_does(network, template, exports) -> None:
    for each in (randomized(network, 1), randomized(network, 2), network):
        found, own = template(each), onnx_copy(each, IMAGES[:1])
        assert without_names_of_nodes(found) == without_names_of_nodes(own)
    assert not exports


def test_other_structures_are_exported_anew(network, template, exports) -> None:
    narrow, other_class, hooked = Network(classes=4), copy.deepcopy(network), copy.deepcopy(network)
    other_class.norm = nn.Identity()
    hooked.head.register_forward_hook(lambda module, inputs, output: output * 2)
    for each in (narrow, other_class, hooked):
        assert template(each.eval()) == b"exported anew"
    assert exports == [narrow, other_class, hooked]


class InPlace(nn.Module):
    """Three activations in place: a sum reads what the second overwrites, a view what the third does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.activation = nn.Conv2d(3, 4, 1), nn.ReLU6(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        shortcut = self.activation(self.conv(images)) - 1
        third = (shortcut + self.activation(shortcut)) - 1
        view = third.flatten(2)
        self.activation(third)
        return view.mean(2)


def test_activations_in_place_give_the_same_whoever_reads_what_they_overwrite() -> None:
    network = InPlace().eval()
    program = torch.export.export(network, (IMAGES,))
    activations_out_of_place(program)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.aten.hardtanh.default) == 2
    assert targets.count(torch.ops.aten.hardtanh_.default) == 1
    session = onnxruntime.InferenceSession(onnx_copy(network, IMAGES[:1]), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: IMAGES.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), network(IMAGES).detach())
