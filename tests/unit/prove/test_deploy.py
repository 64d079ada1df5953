"""Int8 files in onnxruntime: which nodes stay in float, and the medians of their times."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.core.steps import OptionalSteps
from senseapp.prove.deploy import deploy, proven_source, stored_source
from senseapp.prove.mixed_precision import Group, QuantizedFiles, search_mixed_precision
from senseapp.prove.prove import prove
from senseapp.reconstruct.write import onnx_model, write_compressed
from senseapp.records.deployment import DeploySettings
from senseapp.records.schedule import Adapting
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, int8_nodes, layers_of_nodes
from senseapp.runtimes.onnxruntime.operations import OPERATIONS as ONNX
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.solve.node_precisions import NodeTimes
from tests.cases import first_of
from tests.small_evaluator import evaluator_of, schedule_of
from tests.small_models import small_network
from tests.toy_runtime import OPERATIONS as TOY

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second each time

IMAGES = torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(3))
LAYERS = ("0", "2", "4", "8")


def a_network_with_one_loud_channel() -> nn.Module:
    """One channel between layers 0 and 2 is 500 times as loud as the others and hardly used: 8 bits lose the others."""
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )
    with torch.no_grad():
        network[0].weight[0] *= 500
        network[2].weight[:, 0] /= 500
    return network.eval()


@pytest.fixture(scope="module")
def exported() -> bytes:
    return onnx_model(a_network_with_one_loud_channel(), IMAGES[:1])


@pytest.fixture
def damage_of(exported):
    reference = RuntimeModel(exported).run(IMAGES)
    return lambda content: float((RuntimeModel(content).run(IMAGES) - reference).square().mean())


@dataclass
class ExportedFiles(QuantizedFiles):
    """Files of a writer, judged by ``harm``, where each node in float takes as long as all of it in int8."""

    writer: Int8Writer
    harm: Callable[[bytes], float]
    most: float

    def __post_init__(self) -> None:
        self.nodes = tuple(self.writer.nodes(self.writer.write()))
        zero, one = (dict.fromkeys(self.nodes, seconds) for seconds in (0.0, 1.0))
        self.seconds = NodeTimes(in_int8=zero, in_float=one, borders={}, other=1)

    def content(self, in_float: Group = ()) -> bytes:
        return self.writer.write(weights_only=in_float)

    def damage(self, in_float: Group) -> float:
        return self.harm(self.content(in_float))

    def rough_damage(self, in_float: Group) -> float:
        return self.damage(in_float)

    def damage_alone(self, in_int8: Group) -> float:
        return self.harm(self.writer.write(but=set(self.nodes) - set(in_int8)))

    def is_enough(self, in_float: Group) -> bool:
        return False

    def rough_time(self, in_float: Group) -> float:
        return (1 + len(in_float)) / self.most

    def keeps_time(self, in_float: Group) -> bool:
        return self.rough_time(in_float) <= 1


def test_what_int8_harms_stays_in_float(exported, damage_of):
    writer = Int8Writer(exported, [IMAGES])
    files = ExportedFiles(writer, damage_of, most=3)
    found = search_mixed_precision(files, OptionalSteps())
    all_int8, content = writer.write(), files.content(found.in_float)
    owners = layers_of_nodes(exported, LAYERS)
    assert {owners[node] for node in found.in_float} >= {"0", "2"}  # neither helps without the other
    assert not set(found.in_float) & set(int8_nodes(content))
    assert set(writer.nodes(content)) < set(writer.nodes(all_int8)) <= set(found.damages)
    assert damage_of(content) < damage_of(all_int8) / 4
    onnx.checker.check_model(onnx.load_from_string(content))


@pytest.mark.parametrize("runtime", first_of([ONNX, TOY]), ids=["opens the file of the proof", "is written anew"])
def test_a_stored_proof_with_fewer_channels_is_a_source_for_any_runtime(runtime: Runtime, tmp_path: Path) -> None:
    evaluator = evaluator_of(small_network(), PruningConfig())
    one = schedule_of(evaluator, "pruning", 0.5)
    schedule = replace(one, entries=tuple(each for each in one.entries if each.layer == "blocks.0.conv1"))
    proven = prove(evaluator, schedule, repair=True)
    assert proven.result.schedule.removes_channels
    weights, *_ = write_compressed(proven.applied, tmp_path / "proof.safetensors", proven.example)[0]
    source = stored_source(evaluator, runtime, proven.result, weights)
    assert source.integers == {}
    images = evaluator.images.proof.batch(0, 8)
    with torch.no_grad():
        expected = proven.applied.model(images)
    torch.testing.assert_close(runtime.open(source.network).run(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("adapting", first_of(["off", "minutes"]))
def test_a_stored_proof_has_the_integers_that_its_weights_are_made_of(adapting: Adapting, tmp_path: Path) -> None:
    evaluator = evaluator_of(small_network(), QuantizationConfig())
    proven = prove(evaluator, schedule_of(evaluator, "quantization", 4), repair=True, adapting=adapting)
    weights, *_ = write_compressed(proven.applied, tmp_path / "proof.safetensors", proven.example)[0]
    stored = stored_source(evaluator, ONNX, proven.result, weights)
    new = proven_source(evaluator, ONNX, proven)
    layers = {entry.layer for entry in proven.applied.reached}
    assert set(stored.integers) == set(new.integers) == layers
    for name, weight in stored.integers.items():
        parameter = proven.applied.model.get_parameter(evaluator.profile.layer(name).parameter)
        assert torch.equal(weight.dequantized(), parameter)
        assert torch.equal(weight.values, new.integers[name].values)
    notes = deploy(evaluator, stored, DeploySettings(kind="float", batch=1)).record.notes
    assert any("stored as integers, and computed with in float" in note for note in notes)
    assert not any("stored as they were" in note for note in notes)
    weights.with_suffix(".int.safetensors.gz").unlink()  # as in a home of before
    older = stored_source(evaluator, ONNX, proven.result, weights)
    assert older.integers == {}
    notes = deploy(evaluator, older, DeploySettings(kind="float", batch=1)).record.notes
    assert any("rounded as the schedule says, and stored as they were" in note for note in notes)
