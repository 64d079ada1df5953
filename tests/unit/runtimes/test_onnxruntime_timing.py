"""Layers timed in onnxruntime, and schedules of a time that are measured before they are offered."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from senseapp.cli.main import main
from senseapp.compressions import PruningConfig
from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.prove.timed import measured_schedule, schedule_for_time, time_widths
from senseapp.reconstruct.write import onnx_model
from senseapp.records.deployment import FLOAT, INT8, MILLISECONDS, LayerTime, LayerTimes, Median
from senseapp.runtimes.call_times import quick_seconds
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, layers_of_nodes
from senseapp.runtimes.onnxruntime.operations import OPERATIONS, OnnxRuntime
from senseapp.runtimes.onnxruntime.timing import shapes_of
from senseapp.runtimes.openvino.operations import OPERATIONS as OPENVINO
from tests.onnx_graphs import file_of, node
from tests.schedule_cases import run_of

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second each time

LAYERS = ("a", "b", "c")


class Residual(nn.Module):
    """Each of its layers takes some microseconds, which are what OpenVINO counts in."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.head = nn.Linear(64, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        stem = self.stem(images).relu()
        return self.head((stem + self.branch(stem)).mean((2, 3)))


@pytest.mark.parametrize("profiler", [OPERATIONS, OPENVINO], ids=["onnxruntime", "openvino"])
def test_every_layer_has_two_times_and_neighbours_a_cost(profiler):
    torch.manual_seed(0)
    images = torch.randn(4, 3, 16, 16)
    network = onnx_model(Residual().eval(), images)
    writer = Int8Writer(network, [images])
    owners = layers_of_nodes(network, {"stem", "branch", "head"})
    found = profiler.time_layers(network, writer, owners, batch=2)
    assert {(each.layer, each.level) for each in found.times} == {
        (layer, level) for layer in ("stem", "branch", "head") for level in (32.0, 8.0)
    }
    assert all(each.seconds > 0 for each in found.times)
    assert "approximate" in found.notes[0]
    neighbours = {frozenset((each.first, each.second)) for each in found.conversions}
    expected = [(FLOAT, "stem"), ("stem", "branch"), ("stem", INT8), ("branch", INT8), ("head", FLOAT)]
    assert {frozenset(pair) for pair in expected} == neighbours  # the mean before the head is always in float


def test_sizes_that_a_network_computes_are_told_for_a_batch():
    """As Paddle flattens: a length of the batch, which nodes take from the tensor itself, and the rest."""
    nodes = [
        node("GlobalAveragePool", "x", "pooled"), node("Shape", "pooled", "counts"),
        node("Slice", "counts zero one", "length"), node("Concat", "length rest", "wanted", axis=0),
        node("Reshape", "pooled wanted", "flat"), node("MatMul", "flat weight", "y", name="head"),
    ]  # fmt: skip
    stored = {name: np.array([value]) for name, value in (("zero", 0), ("one", 1), ("rest", -1))}
    content = file_of(nodes, {**stored, "weight": np.ones((6, 4), np.float32)}, shape=("n", 6, 8, 8), outputs=("y",))
    assert shapes_of(content, 2)["flat"] == (2, 6)
    same = SimpleNamespace(network=content, write=lambda: content)
    assert {each.layer for each in OPERATIONS.time_layers(content, same, {"head": "head"}).times} == {"head"}


class Narrow(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            *(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 5)),
        )


def test_times_of_widths_add_up_to_what_the_whole_files_take(monkeypatch):
    torch.manual_seed(0)
    image = torch.randn(2, 3, 16, 16)
    files = {level: onnx_model(Narrow(width).eval(), image) for level, width in ((0.0, 32), (0.5, 16))}
    walls = {0.0: 3e-3, 0.5: 1e-3}
    monkeypatch.setattr(OnnxRuntime, "times", lambda *_, **__: [[seconds] * 3 for seconds in walls.values()])
    found = time_widths(OPERATIONS, files, {"0", "2", "6"}, image)
    assert {(each.layer, each.level) for each in found.times} == {(layer, level) for layer in "026" for level in walls}
    for level, seconds in walls.items():
        assert sum(each.seconds for each in found.times if each.level == level) == pytest.approx(seconds)
        levels = dict.fromkeys("026", level)
        assert found.whole(levels, PruningConfig.scale, int8=()) == pytest.approx(seconds)
    assert all(each.seconds > 0 for each in found.times)


def test_a_call_takes_what_it_does_when_nothing_interrupts_it():
    """Other programs interrupt most calls, and for longer the longer one: medians would be 4 to 1."""
    seconds = [[4.0] * 12 + [2.0] * 3, [1.0] * 15]
    assert [quick_seconds(each) for each in seconds] == [2.0, 1.0]


@pytest.mark.wide
def test_a_run_of_pruning_has_a_schedule_of_a_time(tmp_path, capsys):
    run, file = tmp_path / "run", tmp_path / "schedule.json"
    measured = ("--compression", "pruning", "--levels", "50", "--mode", "quick", "--samples", "16")
    demo = ("--model", "demo", "--data", "demo", "--layers", "layer4*")
    assert main(["analyze", *demo, *measured, "--out", str(run)]) == 0
    asked = ("schedule", "--run", str(run), "--format", "json", "--out", str(file), "--budget", "ms", "--target")
    assert main([*asked, "60000"]) == 0
    assert "0 layers or groups compressed" in capsys.readouterr().out
    assert main([*asked, "0.000001"]) == 2
    assert "ms cannot be met by pruning: at least" in capsys.readouterr().err


@dataclass
class ScriptedNetwork:
    """Its files take what is scripted, as multiples of the float file's time, and ``unsure`` more in the worst case."""

    ratios: list[float]
    unsure: float = 0.0
    times: LayerTimes = field(
        default_factory=lambda: LayerTimes(
            times=tuple(
                LayerTime(layer=layer, level=level, seconds=seconds)
                for layer in LAYERS
                for level, seconds in ((32.0, 1e-3), (8.0, 4e-4))
            ),
            source="here",
        )
    )
    image: torch.Tensor = field(default_factory=lambda: torch.zeros(1, 1, 1, 1))
    threads: int = 1
    seen: list[float] = field(default_factory=list)

    def ratio(self, schedule):
        self.seen.append(schedule.achieved[MILLISECONDS])
        value = self.ratios.pop(0)
        return Median(value=value, low=value, high=value + self.unsure)


def solve(network: ScriptedNetwork, milliseconds: float):
    run = run_of(dict.fromkeys(LAYERS, 10), {"a": (0.1,), "b": (0.2,), "c": (0.3,)}, (8.0,), compression="quantization")
    evaluator = SimpleNamespace(result=run, progress=lambda _: None)
    return measured_schedule(evaluator, network, milliseconds / 1000, None)


@pytest.mark.parametrize(
    ("ratios", "unsure", "asked", "promised", "taken"),
    [
        ([0.8], 0.19, 2.5, [2.4], 2.4),
        ([0.72], 0.0, 2.2, [1.8], 2.16),  # as quick as asked, though a quicker one was predicted
        ([0.95, 0.62], 0.0, 2.5, [2.4, 1.8], 1.86),  # slower than asked
        ([0.8, 0.62], 0.21, 2.5, [2.4, 1.8], 1.86),  # may be slower than float
    ],
)
def test_the_first_schedule_measured_to_be_quick_enough_is_offered(ratios, unsure, asked, promised, taken):
    network = ScriptedNetwork(list(ratios), unsure=unsure)
    made = solve(network, asked)
    assert network.seen == pytest.approx(promised)
    assert made.achieved[MILLISECONDS] == pytest.approx(taken)
    said = f"Measured: {taken:.3g} ms, the original 3 ms in turns with it (1 image a call, 1 thread)."
    assert said in made.notes


@pytest.mark.parametrize("ratios", [[1.1] * 5, [0.99] * 5, [0.8, 0.9, 0.9]])
def test_nothing_slower_than_the_budget_or_float_is_ever_offered(ratios):
    with pytest.raises(InfeasibleBudget, match=r"No schedule was measured to take at most 1\.25 ms here"):
        solve(ScriptedNetwork(ratios), 1.25)


def test_a_network_that_is_quick_enough_is_not_measured():
    assert solve(ScriptedNetwork([]), 3.5).achieved[MILLISECONDS] == pytest.approx(3)


def test_zeros_are_said_to_save_no_time():
    run = run_of(dict.fromkeys(LAYERS, 10), dict.fromkeys(LAYERS, (0.1,)), (0.5,))
    with pytest.raises(InvalidSpec, match="Zeros save no time in onnxruntime"):
        schedule_for_time(SimpleNamespace(result=run), OPERATIONS, 1.0)
