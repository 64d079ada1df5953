"""The network as a graph: what autograd says that each layer depends on, and lanes that no two branches share."""

import pytest
import timm
import torch
from torch import Tensor, nn

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidFile
from senseapp.networks.profile import compressible_weights
from senseapp.networks.trace import trace_calls
from senseapp.records.measurement import RunResult
from senseapp.records.profile import FlowNode
from tests.cases import first_of
from tests.pages.records import result


def reached(flow: tuple[FlowNode, ...]) -> set[tuple[str, str]]:
    """Return the pairs of layers the second of which depends on the first, by the graph."""
    sources: list[set[str]] = []
    for node in flow:
        before = set().union(*(sources[index] for index in node.inputs)) if node.inputs else set()
        sources.append(before | ({node.name} if node.kind == "layer" else set()))
    return {
        (first, node.name)
        for place, node in enumerate(flow)
        if node.kind == "layer"
        for index in node.inputs
        for first in sources[index]
    }


def dependent(model: nn.Module, images: Tensor) -> set[tuple[str, str]]:
    """Return the same pairs by autograd: the second's input has a gradient with regard to the first's output."""
    names = {name for name, _, _ in compressible_weights(model)}
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    for name in names:
        model.get_submodule(name).register_forward_hook(
            lambda _, given, output, name=name: (
                (inputs.update({name: given[0]}), outputs.update({name: output}))[2:] or None
            )
        )
    model(images)
    pairs = set()
    for second, tensor in inputs.items():
        if tensor.requires_grad:
            found = torch.autograd.grad(tensor.sum(), list(outputs.values()), allow_unused=True, retain_graph=True)
            pairs |= {(first, second) for first, grad in zip(outputs, found, strict=True) if grad is not None}
    return pairs


_LARGE = [pytest.param(name, marks=pytest.mark.architectures) for name in ("densenet121", "inception_v3")]


@pytest.mark.parametrize("name", first_of(["test_resnet", "test_vit", "test_efficientnet", *_LARGE], 3))
def test_a_layer_comes_after_those_that_autograd_says_it_depends_on(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, exportable=True).eval()
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # autograd would refuse; the graph is the same
    size = max(75, model.pretrained_cfg["input_size"][-1] // 4) if "vit" not in name else 160
    images = torch.randn(1, 3, size, size)
    assert reached(trace_calls(model, images).flow) == dependent(model, images)


def test_a_graph_that_reads_what_comes_later_is_refused() -> None:
    text = dumps(result()).replace('"flow":[{', '"flow":[{"name":"fc","kind":"layer","inputs":[0]},{', 1)
    with pytest.raises(InvalidFile, match="a node reads what is computed after it"):
        loads(text, RunResult)
