"""Which answers change, against a plain loop over the images; and that marked classes are not there by chance."""

import io
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from senseapp.data.images import PreparedImages
from senseapp.networks.loaded import Preprocessing
from senseapp.prove.answers import changed_answers, class_drops, counted_drops
from senseapp.tasks import CLASSIFICATION, MULTILABEL

NUM, CLASSES = 60, 4


def made_up(*, labelled: bool):
    """Images whose answers change for every third one, with the outputs of both models."""
    generator = torch.Generator().manual_seed(3)
    before = torch.randn(NUM, CLASSES, generator=generator)
    after = before.clone()
    after[::3] = torch.randn(NUM, CLASSES, generator=generator)[::3]
    labels = torch.randint(0, CLASSES, (NUM,), generator=generator) if labelled else None
    pixels = torch.randint(0, 256, (NUM, 1, 20, 30), generator=generator, dtype=torch.uint8)
    look = Preprocessing(input_shape=(1, 20, 30), mean=(0.5,), std=(0.5,))
    return PreparedImages(pixels, look, labels, class_names=tuple("abcd")), before, after


@pytest.mark.parametrize("labelled", [True, False])
def test_pictures_and_classes_are_those_of_a_plain_loop(labelled) -> None:
    images, before, after = made_up(labelled=labelled)
    found = changed_answers(before, after, images, task=CLASSIFICATION, names="abcd", subject="it")
    old, new = before.softmax(1), after.softmax(1)
    changed = [index for index in range(NUM) if int(old[index].argmax()) != int(new[index].argmax())]
    surest = sorted(changed, key=lambda index: -float(old[index].max()))[:12]
    assert (found.num_changed, found.num_images, found.by_labels) == (len(changed), NUM, labelled)
    assert [picture.name for picture in found.pictures] == [str(index) for index in surest]
    first, index = found.pictures[0], surest[0]
    assert (first.before, first.after) == ("abcd"[int(old[index].argmax())], "abcd"[int(new[index].argmax())])
    assert (first.sure_before, first.sure_after) == pytest.approx((float(old[index].max()), float(new[index].max())))
    assert first.label == ("abcd"[int(images.labels[index])] if labelled else "")
    assert Image.open(io.BytesIO(first.png)).size == (150, 100)  # enlarged, its shape kept
    lost = dict.fromkeys("abcd", 0)
    totals = dict.fromkeys("abcd", 0)
    for index in range(NUM):
        own = int(images.labels[index]) if labelled else int(old[index].argmax())
        totals["abcd"[own]] += 1
        if labelled:
            lost["abcd"[own]] += int(old[index].argmax() == own) - int(new[index].argmax() == own)
        else:
            lost["abcd"[own]] += index in changed
    assert {each.name: each.num_images for each in found.classes} == totals
    assert {each.name: round(each.drop * each.num_images) for each in found.classes} == lost
    assert found.drop == pytest.approx(sum(lost.values()) / NUM)
    assert [each.drop for each in found.classes] == sorted((each.drop for each in found.classes), reverse=True)


@pytest.mark.parametrize("labelled", [True, False])
def test_labels_that_change_are_those_of_a_plain_loop(labelled) -> None:
    images, before, after = made_up(labelled=False)
    truth = torch.randint(0, 2, (NUM, CLASSES), generator=torch.Generator().manual_seed(4)).float()
    truth[5, 1] = float("nan")  # unknown
    images.labels = truth if labelled else None
    found = changed_answers(before, after, images, task=MULTILABEL, names="abcd", subject="it")
    lost, totals, changed = dict.fromkeys("abcd", 0), dict.fromkeys("abcd", 0), {}
    for index in range(NUM):
        for place, name in enumerate("abcd"):
            old, new, own = before[index, place] > 0, after[index, place] > 0, truth[index, place]
            if old != new:
                sure = float(before[index, place].abs().sigmoid()), float(after[index, place].abs().sigmoid())
                changed[index] = max(changed.get(index, (0, 0)), sure)
            if not labelled:
                totals[name] += 1
                lost[name] += int(old != new)
            elif not own.isnan():
                totals[name] += 1
                lost[name] += int(bool(old) == bool(own)) - int(bool(new) == bool(own))
    assert (found.num_changed, found.by_labels) == (len(changed), labelled)
    assert {each.name: each.num_images for each in found.classes} == totals
    assert {each.name: round(each.drop * each.num_images) for each in found.classes} == lost
    assert found.drop == pytest.approx(sum(lost.values()) / sum(totals.values()))
    first = int(found.pictures[0].name)
    assert first == max(changed, key=lambda index: changed[index][0])
    assert (found.pictures[0].sure_before, found.pictures[0].sure_after) == pytest.approx(changed[first])
    above = sorted(
        (-float(before[first, place]), name) for place, name in enumerate("abcd") if before[first, place] > 0
    )
    assert found.pictures[0].before == (", ".join([name for _, name in above][:3]) or "no label") + (
        " and 1 more" if len(above) == 4 else ""
    )


def drops_of_counts(worse, better, totals, *, by_labels):
    mean = float((worse - better).sum() / totals.sum())
    return class_drops(partial(counted_drops, worse, better, totals, by_labels=by_labels), mean, str)


@pytest.mark.parametrize("by_labels", [True, False])
def test_among_many_alike_classes_hardly_ever_one_stands_out(by_labels) -> None:
    """At a significance of 5 % for each class alone, 19 of 20 tables of 60 classes would have a mark."""
    draw = np.random.default_rng(0)
    marked = 0
    for _ in range(40):
        totals = np.full(60, 40)
        worse = draw.binomial(40, 0.1, 60)
        better = draw.binomial(40 - worse, 0.03) if by_labels else np.zeros(60, dtype=np.int64)
        marked += any(each.stands_out for each in drops_of_counts(worse, better, totals, by_labels=by_labels))
    assert marked <= 6


def test_a_class_that_pays_is_marked() -> None:
    totals, worse = np.full(30, 40), np.full(30, 2)
    worse[7] = 25
    found = drops_of_counts(worse, np.zeros(30, dtype=np.int64), totals, by_labels=True)
    assert [each.name for each in found if each.stands_out] == ["7"]
    assert found[0].drop == 25 / 40


def test_a_task_without_answers_has_none() -> None:
    images, before, after = made_up(labelled=False)
    task = SimpleNamespace(answer_changes=lambda before, after, targets: None)
    assert changed_answers(before, after, images, task=task, names="abcd", subject="it") is None
