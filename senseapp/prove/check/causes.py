"""Likely causes of a large loss: answers that are always the same, classes in another order, other preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from senseapp.core.texts import plural
from senseapp.metrics.predictions import joined
from senseapp.networks.loaded import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from senseapp.networks.network import Network, in_calls
from senseapp.prove.check.outputs import as_shares
from senseapp.prove.judge import Judgement
from senseapp.tasks import Task

_GAIN = 0.25  # share of answers that a cause must explain
_SURE = 0.7  # share of answers that agree once it is undone
_MOST_CLASSES = 3000  # matching takes time with their third power, and memory with their square
_LISTED = 3  # classes as examples, in one sentence

_Scores = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Change = Callable[[Tensor], Tensor]


def likely_causes(
    judged: Judgement,
    candidate: Network,
    preprocessing: Preprocessing,
    *,
    task: Task,
    names: Sequence[str],
) -> tuple[str, ...]:
    """Return in sentences what a candidate that answers much otherwise most likely does.

    Args:
        judged: the candidate on all images.
        candidate: the network.
        preprocessing: of the images, as the reference takes them.
        task: reads the outputs; causes are known for class scores only.
        names: of the classes, as far as they are known.
    """
    before, after = judged.judge.baseline.outputs, judged.outputs
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)) or before.ndim != 2 or task.several_labels:
        return ()
    agreement = _agreement(before, after)
    if agreement > 0.9:
        return ()
    if not bool(after.isfinite().all()):  # which is cause enough
        return ()
    found = [
        *_preparation(judged, candidate, preprocessing, agreement),
        *_class_order(before, after, agreement, task, names),
    ]
    return tuple(found or _always_the_same(before, after, task, names))


def _agreement(before: Tensor, after: Tensor) -> float:
    return float((before.argmax(dim=1) == after.argmax(dim=1)).double().mean())


def _always_the_same(before: Tensor, after: Tensor, task: Task, names: Sequence[str]) -> Iterator[str]:
    answers, wanted = (set(each.argmax(dim=1).tolist()) for each in (after, before))
    if len(answers) == 1 and len(wanted) > 1:
        answer = task.output_name(answers.pop(), names)
        yield f"The compressed file answers {answer} to every image: its weights or its input are probably damaged."


def _class_order(before: Tensor, after: Tensor, agreement: float, task: Task, names: Sequence[str]) -> Iterator[str]:
    """Match classes by how their scores go together on half of the images, and count on the other half."""
    count, classes = before.shape
    if count < 16 or not 1 < classes <= _MOST_CLASSES:  # half fit the order and half judge it
        return
    from scipy.optimize import linear_sum_assignment  # slow to import

    fitted, held_out = slice(0, None, 2), slice(1, None, 2)
    likeness = _correlation(before[fitted].double().numpy(), after[fitted].double().numpy())
    _, places = linear_sum_assignment(-likeness)
    order = torch.as_tensor(places)  # of each class of the reference, the output of the candidate
    moved = (order != torch.arange(classes)).nonzero().flatten().tolist()
    explained = _agreement(before[held_out], after[held_out][:, order])
    if not moved or explained < max(_SURE, agreement + _GAIN):
        return
    examples = ", ".join(f"its output {int(order[each])} is {task.output_name(each, names)} ({each})"
                         for each in moved[:_LISTED])  # fmt: skip
    yield (
        f"Its classes probably come in another order: {examples}{' and so on' if len(moved) > _LISTED else ''}. In the "
        f"order of the original {100 * explained:.0f} % of {plural(len(before[held_out]), 'other image')} agree."
    )


def _correlation(first: _Scores, second: _Scores) -> _Scores:
    """Return the correlation of each column of one (N, K) with each column of the other, (K, K)."""
    scaled = []
    for scores in (first, second):
        apart = scores - scores.mean(axis=0)
        scaled.append(apart / np.maximum(np.linalg.norm(apart, axis=0), 1e-12))
    return np.asarray(scaled[0].T @ scaled[1])


def _preparation(
    judged: Judgement, candidate: Network, preprocessing: Preprocessing, agreement: float
) -> Iterator[str]:
    """Give the candidate some images prepared otherwise."""
    # of each other preparation: enough to tell 25 points of agreement from chance
    count = min(48, judged.judge.images.count)
    batches = list(judged.judge.images.batches(0, count))
    before = judged.judge.baseline.outputs[:count]
    assert isinstance(before, Tensor)
    best, most = "", max(_SURE, agreement + _GAIN)
    for words, change in _other_preparations(preprocessing).items():
        parts = [
            judged.judge.task.predictions(candidate.run(change(part)))
            for batch in batches
            for part in in_calls(candidate, batch.cpu())
        ]
        after = joined(parts)
        assert isinstance(after, Tensor)
        share = _agreement(before, after)
        if share >= most:
            best, most = words, share + 1e-9
    if best:
        yield (
            f"It probably needs other preprocessing than the original: {best}, {100 * most:.0f} % of "
            f"{plural(count, 'image')} agree."
        )


def _other_preparations(preprocessing: Preprocessing) -> dict[str, Change]:
    """Return ways to prepare the same images otherwise, by how a sentence names them."""

    def normalised(mean: tuple[float, ...], std: tuple[float, ...]) -> Change:
        shift, scale = (torch.tensor(each).view(1, -1, 1, 1) for each in (mean, std))
        return lambda batch: (as_shares(batch, preprocessing) - shift) / scale

    ways: dict[str, Change] = {
        "with values from 0 to 255": normalised((0.0,), (1 / 255,)),
        "with values from 0 to 1": normalised((0.0,), (1.0,)),
        "with values from −1 to 1": normalised((0.5,), (0.5,)),
        "transposed, with width and height exchanged": lambda batch: (
            batch.transpose(2, 3) if batch.shape[2] == batch.shape[3] else batch
        ),
    }
    if preprocessing.input_shape[0] == 3:
        ways |= {
            "with mean and std of ImageNet": normalised(IMAGENET_MEAN, IMAGENET_STD),
            "with red and blue exchanged": lambda batch: batch.flip(1),
            "in BGR with values from 0 to 255": lambda batch: as_shares(batch, preprocessing).flip(1) * 255,
        }
    return ways
