"""What does not depend on a changed layer is computed once, and everything is as a plain loop finds it."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from senseapp.compressions.base import Target
from senseapp.data.images import TensorImages
from senseapp.measure import measurer
from senseapp.measure.plan import PlannedTarget, UnchangedCalls, plan_targets, unchanged_calls
from senseapp.measure.sweep import Sweep
from senseapp.networks.trace import CallTrace, trace_calls, wrapped_forwards
from senseapp.records.measurement import LayerMeasurement
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.plain_loop import sparse_logits

LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
EVERYTHING = 2**40


class Counted(nn.Conv2d):
    """Counts how often its forward runs, by name, over all copies."""

    runs: ClassVar[Counter[str]] = Counter()

    def __init__(self, name: str, channels: int = 6, inputs: int = 6) -> None:
        super().__init__(inputs, channels, 3, padding=1)
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        Counted.runs[self.name] += 1
        return super().forward(x)


def branch(name: str) -> nn.Sequential:
    return nn.Sequential(Counted(f"{name}.0"), nn.BatchNorm2d(6), nn.ReLU(inplace=True), Counted(f"{name}.3"))


class TwoHeads(nn.Module):
    """A trunk, and two heads whose results are put side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = Counted("trunk", inputs=3), branch("a"), branch("b")

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x).relu_()
        return torch.cat([self.a(x).mean((2, 3)), self.b(x).amax((2, 3))], dim=1)


class Gated(TwoHeads):
    """The second head is scaled by numbers that the code reads from the first one, of each image."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x).relu_()
        first = self.a(x).mean((2, 3))
        return torch.cat([first, self.b(x * self.gates(first)).amax((2, 3))], dim=1)

    def gates(self, first: Tensor) -> Tensor:
        return torch.tensor([float(number) for number in first[:, 0]])[:, None, None, None]


class SecretlyGated(Gated):
    """The same in a way that leaves no operation to see."""

    def gates(self, first: Tensor) -> Tensor:
        return torch.tensor([row[0] for row in first.tolist()])[:, None, None, None]


def measured(
    model: nn.Module, num_images: int = 12, levels: tuple[float, ...] = LEVELS
) -> tuple[list[LayerMeasurement], list[str], Tensor]:
    torch.manual_seed(0)
    images = torch.randn(num_images, 3, 8, 8)
    spec = SensitivitySpec(levels=levels, num_samples=num_images, batch_size=4, device="cpu")
    sweep = Sweep.open(model, TensorImages(images), spec, task=CLASSIFICATION)
    Counted.runs.clear()
    return list(sweep.measure()), sweep.notes, images


def assert_as_a_plain_loop(model: nn.Module, found: list[LayerMeasurement], images: Tensor) -> None:
    with torch.no_grad():
        original = model(images)
    for item in found:
        change = item.change("kl")
        assert change is not None
        changed = sparse_logits(model, item.layer, "weight", images, item.level)
        divergence = F.kl_div(
            *(each.double().log_softmax(1) for each in (changed, original)), log_target=True, reduction="batchmean"
        )
        assert change.value == pytest.approx(float(divergence), rel=1e-3)


def settled(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind().eval()


def test_the_other_head_is_computed_once_for_all_levels_of_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = settled(TwoHeads)
    found, notes, images = measured(model)
    runs = Counter(Counted.runs)
    assert_as_a_plain_loop(model, found, images)
    assert not [note for note in notes if "branches" in note]
    monkeypatch.setattr(measurer, "unchanged_calls", lambda *_, **__: UnchangedCalls())
    repeated, _, _ = measured(model)
    assert [item.changes for item in found] == [item.changes for item in repeated]
    assert all(runs[name] < 0.9 * Counted.runs[name] for name in ("b.0", "b.3"))  # the first head is before it


@pytest.mark.parametrize("levels", [LEVELS, LEVELS[4:5]])
@pytest.mark.parametrize("kind", [Gated, SecretlyGated])
def test_a_head_that_gets_numbers_of_the_other_is_computed_again(
    kind: type[nn.Module], levels: tuple[float, ...]
) -> None:
    model = settled(kind)
    found, notes, images = measured(model, levels=levels)
    assert_as_a_plain_loop(model, found, images)
    told = [note for note in notes if "Parallel branches were computed again for each level" in note]
    assert bool(told) == (kind is SecretlyGated)


def planned_on(model: nn.Module, images: Tensor) -> tuple[CallTrace, list[PlannedTarget]]:
    trace = trace_calls(model, images[:1])
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    return trace, plan_targets([Target(layer=name, members=(name,), modules=(name,)) for name in names], trace)


def names_of(found: UnchangedCalls, trace: CallTrace, planned: list[PlannedTarget], layer: str) -> set[str]:
    place = next(place for place, item in enumerate(planned) if item.target.layer == layer)
    return {trace.calls[call].module for call in found[place]}


def test_whole_branches_are_kept_and_only_what_starts_later() -> None:
    trace, planned = planned_on(settled(TwoHeads), torch.randn(1, 3, 8, 8))
    found = unchanged_calls(trace, planned, num_images=4, budget_bytes=EVERYTHING)
    assert names_of(found, trace, planned, "a.0") == names_of(found, trace, planned, "a.3") == {"b"}
    assert names_of(found, trace, planned, "trunk") == names_of(found, trace, planned, "b.3") == set()


def test_a_number_that_the_code_reads_makes_the_rest_depend_on_it() -> None:
    trace, planned = planned_on(settled(Gated), torch.randn(1, 3, 8, 8))
    assert unchanged_calls(trace, planned, num_images=4, budget_bytes=EVERYTHING) == UnchangedCalls()


def test_no_more_is_kept_than_fits() -> None:
    trace, planned = planned_on(settled(TwoHeads), torch.randn(1, 3, 8, 8))
    one = 4 * 6 * 8 * 8  # bytes of one head's output, for one image
    fitting = unchanged_calls(trace, planned, num_images=4, budget_bytes=4 * one)
    assert names_of(fitting, trace, planned, "a.0") == {"b"}
    assert unchanged_calls(trace, planned, num_images=4, budget_bytes=4 * one - 1) == UnchangedCalls()


def test_a_chain_has_nothing_to_keep() -> None:
    model = nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(3)))
    trace, planned = planned_on(model, torch.randn(1, 3, 9, 9))
    assert unchanged_calls(trace, planned, num_images=4, budget_bytes=EVERYTHING) == UnchangedCalls()


class Graph(nn.Module):
    """Each node reads two earlier ones, in one of several ways."""

    WAYS = ("sum", "product", "in place", "part", "view", "read")

    def __init__(self, nodes: list[tuple[int, int, str]]) -> None:
        super().__init__()
        self.nodes = nodes
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in nodes)

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for (first, second, way), layer in zip(self.nodes, self.layers, strict=True):
            one, other = found[first % len(found)], found[second % len(found)]
            found.append(layer(self._joined(one, other, way)))
        return found[-1] + found[len(found) // 2]

    @staticmethod
    def _joined(one: Tensor, other: Tensor, way: str) -> Tensor:
        if way == "in place":
            return one.clone().add_(other)
        if way == "part":
            joined = torch.zeros_like(one)
            joined[:, :2] = other[:, :2]
            return joined
        if way == "view":
            return one.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4)
        if way == "read":
            return one * other[0, 0].item()
        return one * other if way == "product" else one + other


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(Graph.WAYS)), min_size=2, max_size=7),
    st.data(),
)
def test_what_changes_with_a_layer_depends_on_it(nodes: list[tuple[int, int, str]], data: Any) -> None:
    torch.manual_seed(0)
    model, images = Graph(nodes).eval(), torch.randn(2, 4)
    layer = f"layers.{data.draw(st.integers(0, len(nodes) - 1))}"
    trace = trace_calls(model, images)
    before = _outputs(model, images)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_submodule(layer).weight.mul_(-1.5)
    after = _outputs(other, images)
    changed = trace.dependence.bits_of([layer])
    for call, one, two in zip(trace.calls, before, after, strict=True):
        assert call.depends & changed or torch.equal(one, two), call.module


def _outputs(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return the output of each call, by its start."""
    found: dict[int, Tensor] = {}

    def wrap(_name: str, _module: nn.Module, forward: Any) -> Any:
        def kept(*args: Any) -> Any:
            place = len(found)
            found[place] = torch.empty(0)
            found[place] = forward(*args).clone()
            return found[place]

        return kept

    with torch.no_grad(), wrapped_forwards(model, wrap):
        model(images)
    return list(found.values())
