"""The network as a graph: what autograd says that each layer depends on, and lanes that no two branches share."""

import weakref

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
        module = model.get_submodule(name)
        module.register_forward_hook(
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


def test_a_skip_is_a_sum_of_two() -> None:
    model = timm.create_model("test_resnet", pretrained=False).eval()
    flow = trace_calls(model, torch.randn(1, 3, 64, 64)).flow
    joins = [node for node in flow if node.kind == "join"]
    assert {node.name for node in joins} == {"add"}
    assert all(len(node.inputs) == 2 for node in joins)
    assert flow[0] == FlowNode(name="image", kind="input")
    assert [node.name for node in flow if node.kind == "layer"][-1] == "fc"


def test_a_graph_that_reads_what_comes_later_is_refused() -> None:
    text = dumps(result()).replace('"flow":[{', '"flow":[{"name":"fc","kind":"layer","inputs":[0]},{', 1)
    with pytest.raises(InvalidFile, match="a node reads what is computed after it"):
        loads(text, RunResult)


class _Remembering(nn.Module):
    """Adds 1, and knows how many of its results are still in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = x + 1
        self.results.append(weakref.ref(found))
        self.most = max(self.most, sum(each() is not None for each in self.results))
        return found


def test_a_traced_pass_keeps_no_more_results_than_any_other() -> None:
    module = _Remembering()
    trace = trace_calls(nn.Sequential(*[module] * 20), torch.zeros(2, 3, 8, 8))
    assert module.most == 2  # what it reads and what it returns
    assert [call.source for call in trace.calls[2:]] == list(range(1, 20))


def test_a_result_that_is_written_to_later_is_known_though_none_is_kept() -> None:
    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = self.first(x)
            found: torch.Tensor = self.second(kept)
            kept[:, 0].relu_()  # through a view
            return found + kept

    calls = {call.module: call for call in trace_calls(Overwriting(), torch.zeros(1, 3, 4, 4)).calls}
    assert calls["first"].overwritten
    assert not calls["second"].overwritten
