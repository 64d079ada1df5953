"""Files in int8 of a search: each as its quantizer delivers it, and judged so."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from senseapp.compressions import QuantizationConfig
from senseapp.core.steps import OptionalSteps
from senseapp.prove.deploy import Source
from senseapp.prove.int8_files import int8_files
from senseapp.records.deployment import DeploySettings
from senseapp.runtimes.quantizers import Quantizer
from tests.small_evaluator import evaluator_of
from tests.small_models import small_network
from tests.toy_runtime import ToyFile, ToyQuantizer, ToyRuntime, packed, unpacked

pytestmark = pytest.mark.slow  # traces a network, which takes seconds

FINISHED = "finished"


class FinishingQuantizer(ToyQuantizer):
    """Marks what it finished; weights of other files are off by a tenth, of finished ones by their rounding only."""

    def write(self, **kept: Sequence[str]) -> bytes:
        content = super().write(**kept)
        program, weights, _ = unpacked(content)
        in_int8 = set(self.nodes(content))
        return packed(program, {name: each * (1.1 if name in in_int8 else 1.0) for name, each in weights.items()})

    def finished(self, content: bytes) -> bytes:
        program, weights, names = unpacked(content)
        assert not names, "A file is finished once."
        original = unpacked(self.network)[1]
        weights = {
            name: each / 1.1 if not torch.equal(each, original[name]) else each for name, each in weights.items()
        }
        return packed(program, weights, [FINISHED])


class FinishingRuntime(ToyRuntime):
    def __init__(self) -> None:
        self.judged: list[tuple[str, ...]] = []

    def open(self, content: bytes, *, threads: int | None = None) -> ToyFile:
        self.judged.append(tuple(unpacked(content)[2]))
        return super().open(content)

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Quantizer:
        return FinishingQuantizer(content)


@pytest.mark.parametrize("kind", ["int8", "mixed"])
def test_files_are_delivered_finished(kind):
    runtime, evaluator = FinishingRuntime(), evaluator_of(small_network(), QuantizationConfig())
    content = evaluator.original_file(runtime)
    layers = runtime.layers_of_nodes(content, {layer.name for layer in evaluator.profile.layers})
    found = int8_files(evaluator, runtime, Source(network=content), layers, DeploySettings(kind=kind), OptionalSteps())
    made = {each.name: each.content for each in found.made if not each.computes_in_float} | dict(found.compared)
    assert set(made) >= {"file", "int8"}
    for name, each in made.items():
        assert runtime.class_names(each) == (FINISHED,), name
    assert kind == "int8" or (FINISHED,) in runtime.judged
