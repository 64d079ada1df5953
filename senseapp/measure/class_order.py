"""The order of the classes in which a classifier finds them, where no name tells which output a label means."""

from __future__ import annotations

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


def order_found(scores: Array, labels: Labels, order: LabelMapProposal) -> LabelMapProposal:
    """Return the order in which the most images are right, by ``scores`` (n, C) and ``labels`` (n,) in ``order``."""
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


def num_found(scores: Array, labels: Labels, order: LabelMapProposal) -> int:
    """Return how many images are right in the order that suits them best."""
    return int((scores.argmax(axis=1) == relabelled(labels, order, order_found(scores, labels, order))).sum())


def answers_as_found(scores: Array, labels: Labels, order: LabelMapProposal, *, significance: float) -> Answers | None:
    """Return the answers to the second half of the images in the order that the first half gives.

    None where that is ``order``, and where classes are not told apart. The first half has pictures of every label.
    """
    second = judging(labels)
    found = order_found(scores[~second], labels[~second], order)
    if found is order:
        return None
    judged = relabelled(labels, order, found)[second]
    if not tells_classes_apart(scores[second], judged, significance=significance):
        return None
    return Answers.of(scores[second], judged)
