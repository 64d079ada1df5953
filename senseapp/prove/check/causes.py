"""Likely causes of a large loss: answers that are always the same, classes in another order, other preprocessing."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from senseapp.core.texts import plural
from senseapp.metrics.predictions import joined
from senseapp.networks.loaded import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from senseapp.networks.network import Network
from senseapp.prove.check.sides import as_shares
from senseapp.prove.judge import Judgement, predictions
from senseapp.tasks import Task

_GAIN = 0.25  # share of answers that a cause must explain
_SURE = 0.7  # share of answers that agree once it is undone
_MOST_CLASSES = 3000  # matching takes time with their third power, and memory with their square
_LISTED = 3  # classes as examples, in one sentence

Change = Callable[[Tensor], Tensor]


def likely_causes(
    judged: Judgement, candidate: Network, preprocessing: Preprocessing, *, task: Task, names: Sequence[str]
) -> tuple[str, ...]:
    """Return in sentences what a candidate that answers much otherwise most likely does.

    Causes are known for class scores only. ``preprocessing`` is of the images, as the reference takes them; ``names``
    are those of the classes, as far as they are known.
    """
    before, after = judged.judge.baseline.outputs, judged.outputs
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)) or before.ndim != 2 or task.several_labels:
        return ()
    agreement = _agreement(before, after)
    if agreement > 0.9 or not bool(after.isfinite().all()):  # the latter is cause enough
        return ()
    found = [
        *_preparation(judged, candidate, preprocessing, agreement),
        *_class_order(before, after, agreement, task, names),
    ]
    answers, wanted = (set(each.argmax(dim=1).tolist()) for each in (after, before))
    if not found and len(answers) == 1 < len(wanted):
        answer = task.output_name(answers.pop(), names)
        found = [f"The compressed file answers {answer} to every image: its weights or its input are probably damaged."]
    return tuple(found)


def _agreement(before: Tensor, after: Tensor) -> float:
    return float((before.argmax(dim=1) == after.argmax(dim=1)).double().mean())


def _class_order(before: Tensor, after: Tensor, agreement: float, task: Task, names: Sequence[str]) -> Iterator[str]:
    """Match classes by how their scores go together on half of the images, and count on the other half."""
    count, classes = before.shape
    if count < 16 or not 1 < classes <= _MOST_CLASSES:  # half fit the order and half judge it
        return
    from scipy.optimize import linear_sum_assignment  # slow to import

    fitted, held_out = slice(0, None, 2), slice(1, None, 2)
    apart = [each[fitted].double() - each[fitted].double().mean(dim=0) for each in (before, after)]
    scaled = [each / each.norm(dim=0).clamp_min(1e-12) for each in apart]
    _, places = linear_sum_assignment(-(scaled[0].T @ scaled[1]).numpy())  # the correlation of all columns
    order = torch.as_tensor(places)  # of each class of the reference, the output of the candidate
    moved = (order != torch.arange(classes)).nonzero().flatten().tolist()
    explained = _agreement(before[held_out], after[held_out][:, order])
    if not moved or explained < max(_SURE, agreement + _GAIN):
        return
    named = [f"its output {int(order[each])} is {task.output_name(each, names)} ({each})" for each in moved[:_LISTED]]
    examples = ", ".join(named) + (" and so on" if len(moved) > _LISTED else "")
    yield (
        f"Its classes probably come in another order: {examples}. In the order of the original "
        f"{100 * explained:.0f} % of {plural(len(before[held_out]), 'other image')} agree."
    )


def _preparation(
    judged: Judgement, candidate: Network, preprocessing: Preprocessing, agreement: float
) -> Iterator[str]:
    """Give the candidate some images prepared otherwise."""
    # of each other preparation: enough to tell 25 points of agreement from chance
    count = min(48, judged.judge.images.count)
    batches = list(judged.judge.images.batches(0, count))
    before = judged.judge.baseline.outputs[:count]
    assert isinstance(before, Tensor)
    shares = dict[str, float]()
    for words, change in _other_preparations(preprocessing).items():
        after = joined([predictions(judged.judge.task, candidate, change(batch.cpu())) for batch in batches])
        assert isinstance(after, Tensor)
        shares[words] = _agreement(before, after)
    best, share = max(shares.items(), key=lambda each: each[1])
    if share >= max(_SURE, agreement + _GAIN):
        told = f"{best}, {100 * share:.0f} % of {plural(count, 'image')} agree"
        yield f"It probably needs other preprocessing than the original: {told}."


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
            "with mean and spread of ImageNet": normalised(IMAGENET_MEAN, IMAGENET_STD),
            "with red and blue exchanged": lambda batch: batch.flip(1),
            "in BGR with values from 0 to 255": lambda batch: as_shares(batch, preprocessing).flip(1) * 255,
        }
    return ways
