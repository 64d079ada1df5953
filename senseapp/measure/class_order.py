"""Orders of a classifier's classes: those that fit the labels, and the one in which the network finds the classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from senseapp.measure.reading_evidence import matched_order
from senseapp.metrics.paired_tests import Answers, Array, tells_classes_apart
from senseapp.tasks.labels import LabelMapProposal

Labels = npt.NDArray[np.int64]


def judging(labels: Labels) -> npt.NDArray[np.bool_]:
    """Return which half of the images a match is judged on: every second one of each label, (n,).

    >>> judging(np.array([0, 1, 0, 1, 0])).tolist()
    [False, False, True, True, False]
    """
    places = pd.Series(labels).groupby(labels).cumcount().to_numpy()
    return np.asarray(places % 2 == 1)


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
        labels = None if self.labels is None else self.labels_in(order, len(scores))[part]
        return Answers.of(scores[part], labels)

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
