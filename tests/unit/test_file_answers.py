"""Answers of delivered files, image by image, and where two files differ, against a plain loop."""

import pytest
import torch

from senseapp.core.codec import dumps, loads
from senseapp.data.images import TensorImages
from senseapp.prove.answers import file_answers
from senseapp.records.answers import FileAnswers, LabelledAnswer, differences
from senseapp.tasks import CLASSIFICATION, MULTILABEL
from senseapp.views.frames.files import difference_line, difference_sentence
from tests.toy_task import REGRESSION

NUM, CLASSES, NAMES = 40, 5, ("crow", "crane, a bird", "crane, a machine", "jay", "rook")
SHOWN = ("crow", "crane (1)", "crane (2)", "jay", "rook")


def outputs(seed: int, *, labels: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, TensorImages]:
    generator = torch.Generator().manual_seed(seed)
    before = torch.randn(NUM, CLASSES, generator=generator)
    after = before + 0.8 * torch.randn(NUM, CLASSES, generator=generator)
    images = TensorImages(torch.zeros(NUM, 1, 2, 2), labels, names=tuple(f"{index}.png" for index in range(NUM)))
    return before, after, images


def the_labels() -> torch.Tensor:
    return torch.randint(0, CLASSES, (NUM,), generator=torch.Generator().manual_seed(1))


def test_answers_labels_and_probabilities_are_those_of_a_plain_loop() -> None:
    before, after, images = outputs(0, labels=the_labels())
    found = file_answers(before, after, images, task=CLASSIFICATION, names=NAMES)
    assert loads(dumps(found), FileAnswers) == found
    for side, output in ((found.original, before), (found.file, after)):
        assert list(side) == [f"{index}.png" for index in range(NUM)]
        for index in range(NUM):
            answer = side[f"{index}.png"]
            shares = output[index].softmax(0)
            assert answer.text == SHOWN[int(shares.argmax())]  # the two cranes are told apart
            assert answer.sure == pytest.approx(float(shares.max()), abs=5e-4)
            assert answer.label == SHOWN[int(images.labels[index])]


def test_differences_are_those_of_a_plain_loop_over_the_images_that_both_have() -> None:
    labels = the_labels()
    one = file_answers(*outputs(0, labels=labels), task=CLASSIFICATION, names=NAMES)
    before, after, images = outputs(5, labels=labels)
    kept = list(range(7, NUM))
    other = file_answers(before[kept], after[kept], images.subset(kept), task=CLASSIFICATION, names=NAMES)
    found = differences(one.file, other.file)
    a, b = outputs(0)[1].argmax(1), after.argmax(1)
    expected = [index for index in kept if a[index] != b[index]]
    assert found.num_images == len(kept)
    assert set(found.different) == {f"{index}.png" for index in expected}
    assert found.only_first == sum(int(a[index] == labels[index]) for index in expected) > 0
    assert found.only_second == sum(int(b[index] == labels[index]) for index in expected) > 0
    sure = [one.sure + two.sure for one, two in found.different.values()]
    assert sure == sorted(sure, reverse=True)
    neither = len(expected) - found.only_first - found.only_second
    assert difference_sentence(found, ("A", "B")) == (
        f"{len(expected)} of 33 pictures are answered differently: A alone is right on {found.only_first}, "
        f"B alone on {found.only_second}, neither on {neither}."
    )


def test_without_labels_nobody_is_right() -> None:
    record = file_answers(*outputs(0), task=CLASSIFICATION, names=())
    found = differences(record.original, record.file)
    assert (found.only_first, found.only_second) == (None, None)
    assert next(iter(found.different.values()))[0].text.startswith("class ")
    assert difference_sentence(found, ("A", "B")).endswith("of 40 pictures are answered differently.")
    alike = differences(record.original, record.original)
    assert difference_sentence(alike, ("A", "B")) == "Both give the same answers to 40 pictures."
    assert "different images" in difference_sentence(differences(record.original, {}), ("A", "B"))


def test_of_several_labels_the_whole_answer_counts() -> None:
    truth = (torch.rand(NUM, CLASSES, generator=torch.Generator().manual_seed(4)) > 0.5).float()
    truth[3, 2] = float("nan")
    before, after, images = outputs(0, labels=truth)
    record = file_answers(before, after, images, task=MULTILABEL, names=NAMES)
    side = record.file
    for index in range(NUM):
        true = [SHOWN[place] for place in range(CLASSES) if after[index, place] > 0]
        given = side[f"{index}.png"]
        assert given.text == (", ".join(true) or "no label")
        sure = [max(float(p), 1 - float(p)) for p in after[index].sigmoid()]
        assert given.sure == pytest.approx(min(sure), abs=5e-4)
        known = None if index == 3 else [SHOWN[place] for place in range(CLASSES) if truth[index, place] == 1]
        assert given.label == (None if known is None else ", ".join(known) or "no label")
    found = differences(record.original, side)
    assert found.only_first is None  # the truth of one picture is not fully known


def test_numbers_are_no_answers() -> None:
    before, after, images = outputs(0)
    assert file_answers(before, after, images, task=REGRESSION, names=()) is None
    assert REGRESSION.probabilities(before) is None


def test_a_right_answer_is_marked() -> None:
    assert difference_line("A", LabelledAnswer(text="crow", sure=0.61, label="crow")) == "A: crow (61 %), right"
    assert difference_line("B", LabelledAnswer(text="crow", sure=0.61, label="jay")) == "B: crow (61 %)"
