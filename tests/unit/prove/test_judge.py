"""One judge for torch modules and open files, whatever nesting their outputs have."""

from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidInput, InvalidSpec
from senseapp.data.images import TensorImages
from senseapp.measure.context import MeasurementContext
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.tasks import CLASSIFICATION, SEGMENTATION
from senseapp.tasks.classification import Classification
from tests.cases import first_of
from tests.toy_task import REGRESSION

pytestmark = pytest.mark.slow  # exports networks

COUNT, CLASSES = 24, 5
IMAGES = torch.randn(COUNT, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Nesting(nn.Module):
    """Returns its scores beside other tensors, as detection and segmentation networks do."""

    def __init__(self, *, factor: float = 1.0, reads_batch: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, CLASSES)
        self._reads_batch = reads_batch
        with torch.no_grad():
            self.head.weight.mul_(factor)

    def forward(self, images: Tensor) -> dict[str, object]:
        maps = self.conv(images).relu()
        scores = self.head(maps.mean((2, 3)))
        if self._reads_batch:
            scores = torch.stack([scores[index] for index in range(len(images))])
        return {"aux": [maps.amax((2, 3)), None], "out": (scores,)}


@dataclass(frozen=True, kw_only=True)
class Picked(Classification):
    """Classification by one tensor of several."""

    def output(self, model_output: object) -> Tensor:
        return super().output(model_output["out"][0])  # type: ignore[index]

    def check_output(self, model_output: object, num_images: int) -> None:
        super().check_output(model_output["out"][0], num_images)  # type: ignore[index]


PICKED = Picked(**{each.name: getattr(CLASSIFICATION, each.name) for each in fields(CLASSIFICATION)})


def a_context(network: nn.Module, task: Classification = PICKED) -> MeasurementContext:
    labels = torch.arange(COUNT) % CLASSES
    return MeasurementContext.prepare(network.eval(), TensorImages(IMAGES, labels), task=task)


@pytest.mark.parametrize("reads_batch", first_of([False, True]), ids=["any number", "one image a call"])
def test_a_module_and_its_file_are_judged_alike(reads_batch: bool) -> None:
    dense, changed = (a_context(Nesting(factor=factor, reads_batch=reads_batch)) for factor in (1.0, 0.5))
    exporter = OPERATIONS.exporter(dense.model, IMAGES[:1])
    original, file = (OPERATIONS.open(exporter(each.model)) for each in (dense, changed))
    assert original.fixed_batch == (1 if reads_batch else None)
    assert len(original.output_names) == 2
    raw = file.run(IMAGES[:1])
    assert set(raw) == {"aux", "out"}  # type: ignore[call-overload]
    assert raw["aux"][1] is None  # type: ignore[index]
    images = JudgingImages.of_set(dense.images, dense)
    in_torch = Judge(PICKED, images, dense, num_outputs=CLASSES).judged(changed)
    in_runtime = Judge(PICKED, images, original, num_outputs=CLASSES).judged(file)
    across = Judge(PICKED, images, dense, num_outputs=CLASSES).judged(original)
    with torch.no_grad():
        before, after = (each.model(IMAGES)["out"][0].double().log_softmax(1) for each in (dense, changed))
    expected = float((before.exp() * (before - after)).sum(1).mean())
    assert in_torch.damage == pytest.approx(expected, rel=1e-4)
    assert in_runtime.damage == pytest.approx(expected, rel=1e-3)
    assert across.damage == pytest.approx(0.0, abs=1e-6)
    assert {change.metric for change in in_runtime.changes} == {change.metric for change in in_torch.changes}


def test_a_file_in_int8_nests_its_outputs_too() -> None:
    dense = a_context(Nesting())
    content = OPERATIONS.exporter(dense.model, IMAGES[:1])(dense.model)
    judge = Judge(PICKED, JudgingImages.of_batches([IMAGES]), OPERATIONS.open(content), num_outputs=CLASSES)
    quantizer = OPERATIONS.quantizer(content, [IMAGES])
    for file in [quantizer.write(), quantizer.write(but=[quantizer.nodes(quantizer.write())[0]])]:
        judged = judge.judged(OPERATIONS.open(file))
        assert judged.outputs.shape == (COUNT, CLASSES)
        assert 0 < judged.damage < 0.01


def test_spans_add_up_and_answers_that_differ_are_counted() -> None:
    dense, changed = a_context(Nesting()), a_context(Nesting(factor=-1.0))
    judge = Judge(PICKED, JudgingImages.of_set(dense.images, dense), dense, num_outputs=CLASSES)
    whole, parts = judge.judged(changed), [judge.judged(changed, 0, 10), judge.judged(changed, 10)]
    for name, sums in whole.moments.items():
        added = [sum(values) for values in zip(*(part.moments[name] for part in parts), strict=True)]
        assert added == pytest.approx(sums)
    differ = (judge.original.outputs.argmax(1) != whole.outputs.argmax(1)).double().mean()
    assert whole.share_changed == pytest.approx(float(differ))
    assert judge.original.damage == 0


def test_damage_of_parts_and_of_single_images() -> None:
    """Parts of equal length have the damage on average; the typical one is the square of the mean root."""
    dense, changed = (a_context(Nesting(factor=factor)) for factor in (1.0, 0.5))
    judge = Judge(PICKED, JudgingImages.of_set(dense.images, dense), dense, num_outputs=CLASSES)
    judgement = judge.judged(changed)
    parts = judgement.damages(8)
    assert len(parts) == 8
    assert sum(parts) / 8 == pytest.approx(judgement.damage)
    assert parts[1] == pytest.approx(judge.judged(changed, 3, 6).damage)
    assert len(judge.judged(changed, 0, 5).damages(8)) == 5
    single = [judge.judged(changed, place, place + 1).damage for place in range(len(IMAGES))]
    assert judgement.typical_damage == pytest.approx((sum(each**0.5 for each in single) / len(single)) ** 2)
    assert 0 < judgement.typical_damage < judgement.damage


def test_outputs_that_are_no_answers_have_no_share_that_changed() -> None:
    torch.manual_seed(0)
    dense, changed = (
        MeasurementContext.prepare(
            nn.Sequential(nn.Flatten(), nn.Linear(192, 1)).eval(), TensorImages(IMAGES), task=REGRESSION
        )
        for _ in range(2)
    )
    judge = Judge(REGRESSION, JudgingImages.of_set(dense.images, dense), dense, num_outputs=1)
    with pytest.raises(InvalidSpec, match="A limit on changed answers is for networks that choose one of several"):
        _ = judge.original.share_changed
    judgement = judge.judged(changed)
    assert judgement.typical_damage == judgement.damage > 0  # one that no single image has


def test_a_reference_that_says_nothing_is_compared_with_nothing() -> None:
    """Else any network would keep all of its answers."""
    network = nn.Conv2d(3, 2, 1)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([0.0, 1.0]))  # type: ignore[union-attr]
    dense = MeasurementContext.prepare(network.eval(), TensorImages(IMAGES), task=SEGMENTATION)
    judge = Judge(SEGMENTATION, JudgingImages.of_set(dense.images, dense), dense, num_outputs=2)
    with pytest.raises(InvalidInput, match=r"Nothing can be compared. .* the same class \(1\)"):
        judge.require_answers()
