"""Evidence for one reading of a network: figures on labelled images, or agreement on mirrored ones.

Class numbers are evidence of their own: the orders of the classes that fit the labels, and the one in which the network
finds the classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from senseapp.data.images import PreparedImages
from senseapp.metrics import METRICS
from senseapp.metrics.base import SIGNIFICANCE
from senseapp.metrics.paired_tests import Answers, Array, mean_is_above_zero, tells_classes_apart
from senseapp.metrics.predictions import Predictions, joined, stored
from senseapp.metrics.segmentation import VOID
from senseapp.records.spec import DataSpec
from senseapp.tasks import Task
from senseapp.tasks.annotations import PerImage
from senseapp.tasks.labels import LabelMapProposal
from senseapp.tasks.reading import OutputReader

LEAST_IMAGES = 8
"""With labels, to choose by them."""
AS_FOUND = "as the network finds them"
"""How classes are matched that only the network's own answers tell."""

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingCandidate:
    """One reading.

    Attributes:
        data: the images, with their preparation.
        reader: of the outputs; None where the task reads them in one way.
        order: what class numbers mean; None where that is certain, or there are no labels.
        words: of the preparation, where it is not the first.
        departures: how far it is from the first that would be taken without evidence.
    """

    data: DataSpec
    reader: OutputReader | None
    order: LabelMapProposal | None = None
    words: tuple[str, ...] = ()
    departures: int

    @property
    def layout(self) -> str:
        """The layout as a setting."""
        return "" if self.reader is None else self.reader.key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """A candidate on the images: of all together, of each and of each with other labels, (n,).

    ``nothing`` is a sentence where its answers to images without labels say nothing.
    """

    candidate: ReadingCandidate
    value: float
    each: Array
    by_chance: Array
    labelled: bool
    nothing: str = ""

    def is_clearly_better(self, than: Array, tried: int) -> bool:
        """Return whether images are read better than with figures ``than``, beyond chance for so many ways together."""
        gains = np.nan_to_num(self.each) - np.nan_to_num(than)
        tried = tried if len(gains) >= LEAST_IMAGES else 2  # so few never reach a corrected level
        return mean_is_above_zero(gains, significance=SIGNIFICANCE / max(1, tried - 1))

    def is_chance(self, least: float) -> bool:
        """Return whether labels fit hardly better than those of other images, or below ``least`` of the metric."""
        return self.value < least or (len(self.each) >= LEAST_IMAGES and not self.is_clearly_better(self.by_chance, 1))


def scored_by_metric(
    task: Task, candidate: ReadingCandidate, outputs: Predictions, images: PreparedImages, targets: PerImage = None
) -> Scored:
    """Score a candidate by the metric that the task shows, on labelled ``images``; ``targets`` replace their labels."""
    metric = METRICS[task.shown_metric]
    targets = labels_as(images, candidate.order) if targets is None else targets
    judged = _judged_alike(images, targets)

    def value(predicted: Predictions, wanted: object) -> float:
        return metric.estimate(metric.moments(predicted, predicted, wanted))[0]

    count = len(outputs)
    total = value(outputs, targets)
    return Scored(
        candidate=candidate,
        value=0.0 if total != total else total,
        each=np.array([value(outputs[at : at + 1], judged[at : at + 1]) for at in range(count)]),
        by_chance=np.array([value(outputs[at : at + 1], judged[(at + 1) % count :][:1]) for at in range(count)]),
        labelled=True,
    )


def scored_by_mirror(
    task: Task, candidate: ReadingCandidate, raws: Sequence[object], mirrored: Sequence[object], width: int
) -> Scored:
    """Score a candidate by how well answers to pictures agree with those to their mirror images."""
    read = candidate.reader or (lambda raw: raw)
    each: list[float] = []
    answers = [read(raw) for raw in raws]
    for one, other in zip(answers, mirrored, strict=True):
        each += task.mirror_agreement(one, read(other), width)
    found = np.array(each)
    return Scored(
        candidate=candidate,
        value=float(found.mean()),
        each=found,
        by_chance=np.zeros_like(found),
        labelled=False,
        nothing=task.baseline_note(joined([stored(task.predictions(one)) for one in answers])),
    )


def scored_as_found(
    task: Task, best: Scored, outputs: Predictions, images: PreparedImages, num_outputs: int
) -> Scored | None:
    """Score ``best`` with each label as the class by which the network finds most of it; None where that is its order.

    Each half of the images is judged with the order that the other half gives (two-fold cross-validation), as an order
    suits the images that it was matched on.
    """
    order, half = best.candidate.order, len(outputs) // 2
    if order is None or images.read_as is None:
        return None
    labels = labels_as(images, order)

    def matched(part: slice) -> LabelMapProposal:
        table = task.confusion(outputs[part], labels[part], num_outputs)
        return order if table is None else matched_order(order, table.numpy())

    found = matched(slice(None))
    if found is order:
        return None
    first = labels_as(images, matched(slice(half, None)))[:half]
    second = labels_as(images, matched(slice(half)))[half:]
    targets = torch.cat([first, second]) if isinstance(first, Tensor) else first + second
    departures = best.candidate.departures + len(images.label_orders)
    return scored_by_metric(task, replace(best.candidate, order=found, departures=departures), outputs, images, targets)


def matched_order(order: LabelMapProposal, table: npt.NDArray[np.generic]) -> LabelMapProposal:
    """Return ``order`` with other outputs: those that give the confusion matrix the largest diagonal.

    ``table`` (outputs, outputs) counts answers by the output that their label means in ``order`` and by that found.
    Labels without a count keep their output if it is free.
    """
    used = table.sum(axis=1).nonzero()[0]
    rows, columns = linear_sum_assignment(table[used], maximize=True)
    moved = {int(used[row]): int(column) for row, column in zip(rows, columns, strict=True)}
    taken = set(moved.values())
    kept = {output: output for _, output in order.pairs if output not in moved and output not in taken}
    pairs = tuple((label, {**kept, **moved}[output]) for label, output in order.pairs if output in {**kept, **moved})
    return order if pairs == order.pairs else LabelMapProposal(pairs=pairs, words=AS_FOUND)


def labels_as(images: PreparedImages, order: LabelMapProposal | None) -> PerImage:
    """Return the labels of ``images`` in one order of the classes."""
    if order is None or order == next(iter(images.label_orders), None) or images.read_as is None:
        return images.labels
    return images.read_as(images.written, order)[0]


def _judged_alike(images: PreparedImages, labels: PerImage) -> PerImage:
    """Return masks without the pixels that some order of the classes leaves out: all orders are judged on the same."""
    if not isinstance(labels, Tensor):
        return labels
    judged = labels.clone()
    for order in images.label_orders:
        judged[labels_as(images, order) == VOID] = VOID
    return judged


# ---- orders of a classifier's classes


def judging(labels: Labels) -> npt.NDArray[np.bool_]:
    """Return which half of the images a match is judged on: every second one of each label, (n,).

    >>> judging(np.array([0, 1, 0, 1, 0])).tolist()
    [False, False, True, True, False]
    """
    return np.asarray(pd.Series(labels).groupby(labels).cumcount().to_numpy() % 2 == 1)


@dataclass(slots=True, eq=False)
class ClassOrders:
    """The labels of some images, and what they mean in each order of the classes.

    Scores, (n, C), are those of the first n images.

    Attributes:
        labels: outputs in the first order, one for each image; None without labels.
        orders: those that fit the labels; empty where labels can mean nothing else.
    """

    labels: Labels | None = None
    orders: tuple[LabelMapProposal, ...] = ()

    def labels_in(self, order: int, count: int) -> Labels:
        """Return the first ``count`` labels as outputs in the order of this index."""
        assert self.labels is not None
        labels = self.labels[:count]
        return relabelled(labels, self.orders[0], self.orders[order]) if order else labels

    def answers(self, scores: Array, order: int, part: slice | npt.NDArray[np.bool_] = slice(None)) -> Answers:
        """Return the answers to a ``part`` of the images, judged in the order of this index where there are labels."""
        return Answers.of(scores[part], None if self.labels is None else self.labels_in(order, len(scores))[part])

    def tells_apart(self, scores: Array, order: int, significance: float) -> bool:
        """Return whether answers agree with the labels in this order beyond the class frequencies alone."""
        return tells_classes_apart(scores, self.labels_in(order, len(scores)), significance=significance)

    def found(self, scores: Array) -> LabelMapProposal:
        """Return the order in which the most images are right."""
        return _found(scores, self.labels_in(0, len(scores)), self.orders[0])

    def num_found(self, scores: Array) -> int:
        """Return how many images are right in the order that suits them best."""
        labels = relabelled(self.labels_in(0, len(scores)), self.orders[0], self.found(scores))
        return int((scores.argmax(axis=1) == labels).sum())

    def answers_as_found(self, scores: Array, significance: float) -> Answers | None:
        """Return the answers to the second half of the images in the order that the first half gives.

        None where that is the first order, and where classes are not told apart. The first half has every label.
        """
        labels, own = self.labels_in(0, len(scores)), self.orders[0]
        second = judging(labels)
        found = _found(scores[~second], labels[~second], own)
        if found is own:
            return None
        judged = relabelled(labels, own, found)[second]
        if not tells_classes_apart(scores[second], judged, significance=significance):
            return None
        return Answers.of(scores[second], judged)


def _found(scores: Array, labels: Labels, order: LabelMapProposal) -> LabelMapProposal:
    table = np.zeros((scores.shape[1],) * 2, dtype=np.int64)
    np.add.at(table, (labels, scores.argmax(axis=1)), 1)
    return matched_order(order, table)


def relabelled(labels: Labels, own: LabelMapProposal, other: LabelMapProposal) -> Labels:
    """Return ``labels``, outputs in the ``own`` order, in the other one; labels that it lacks are output 0."""
    others = dict(other.pairs)
    outputs = np.zeros(1 + max(int(labels.max()), *(place for _, place in own.pairs)), dtype=np.int64)
    for name, place in own.pairs:
        outputs[place] = others.get(name, 0)
    return outputs[labels]
