"""Class numbers as a network finds them are judged on images that they were not matched on."""

from types import SimpleNamespace

import pytest
import torch

from senseapp.measure.reading_evidence import ReadingCandidate, scored_as_found, scored_by_metric
from senseapp.metrics.predictions import stored
from senseapp.metrics.segmentation import TASK
from senseapp.records.spec import DataSpec
from senseapp.tasks import task_named
from senseapp.tasks.labels import LabelMapProposal

CLASSES, IMAGES = 6, 12
ORDER = LabelMapProposal(pairs=tuple((str(each), each) for each in range(CLASSES)), words="as written")


def in_order(masks, order):
    moved = torch.zeros(CLASSES, dtype=torch.long)
    for name, output in order.pairs:
        moved[int(name)] = output
    return moved[masks], None


@pytest.mark.parametrize("knows", [True, False])
def test_an_order_that_suits_the_images_it_was_matched_on_is_judged_on_others(knows):
    """By chance 1 pixel in 6 is right: 1/11 of the union of a class."""
    random = torch.Generator().manual_seed(0)
    masks = (torch.arange(IMAGES) % CLASSES)[:, None, None].expand(-1, 8, 8).contiguous()
    answers = torch.randint(CLASSES, (IMAGES, 1, 1), generator=random).expand(-1, 8, 8)
    answers = (masks + 1) % CLASSES if knows else answers
    task = task_named(TASK)
    outputs = stored(task.predictions(torch.nn.functional.one_hot(answers, CLASSES).permute(0, 3, 1, 2).float()))
    images = SimpleNamespace(labels=masks, written=masks, label_orders=(ORDER,), read_as=in_order)
    candidate = ReadingCandidate(data=DataSpec(), reader=None, order=ORDER, departures=0)
    found = scored_as_found(task, scored_by_metric(task, candidate, outputs, images), outputs, images, CLASSES)
    assert found.value == 1.0 if knows else found.value < 0.2
    assert scored_by_metric(task, found.candidate, outputs, images).value > 0.2  # on the images it was matched on
