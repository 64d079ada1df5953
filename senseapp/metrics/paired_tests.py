"""Paired tests: whether one way to run a model is better than another on the same images.

Accuracy says little about a few dozen images, so the cross-entropy of each image is compared, by a paired t test, after
the temperature that suits each way best: a preparation that only sharpens or flattens the answers gains nothing.

Source: Guo et al. (2017), On calibration of modern neural networks, section 4.2 (temperature scaling).
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, stdtr  # scipy.stats takes half a second to import

Array = npt.NDArray[np.float64]

_LEAST_IMAGES = 8  # for a t test of numbers that are far from normal
_TEMPERATURES = np.geomspace(0.5, 1000, 77)
"""Answers may be sharpened by no more than 2, so that margins still count where every image is right."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Predictions of a model for some images: the loss of each, (n,), and how many are right; None without labels.

    The loss is the cross-entropy after the best temperature, or minus the information of an answer.
    """

    loss: Array
    num_correct: int | None

    @classmethod
    def of(cls, scores: Array, labels: npt.NDArray[np.int64] | None) -> Self:
        """Judge class scores (n, C) by ``labels`` (n,), or without them."""
        scores = np.nan_to_num(scores, nan=0.0, posinf=1e6, neginf=-1e6)
        if labels is None:
            return cls(-answer_information(scores), None)
        return cls(calibrated_cross_entropy(scores, labels), int((scores.argmax(axis=1) == labels).sum()))

    @property
    def mean_loss(self) -> float:
        """The mean over the images, in nats; the lower the better."""
        return float(self.loss.mean())


def calibrated_cross_entropy(scores: Array, labels: npt.NDArray[np.int64]) -> Array:
    """Return -log p(label) of each image, float64 (n,), at the temperature of the least mean, in nats."""
    rows = np.arange(len(labels))
    losses = (
        logsumexp(scores / temperature, axis=1) - scores[rows, labels] / temperature for temperature in _TEMPERATURES
    )
    best: Array = min(losses, key=lambda loss: float(loss.mean()))
    return best


def answer_information(scores: Array) -> Array:
    """Return how far each image's answer is from the average answer, KL(p_i || mean p), float64 (n,), in nats.

    The mean over the images is the information between image and class: answers that are confident and differ from
    image to image have much of it, unsure ones and one and the same answer to everything have little.
    """
    log_answers = scores - logsumexp(scores, axis=1, keepdims=True)  # (n, C)
    log_mean = logsumexp(log_answers, axis=0) - np.log(len(scores))
    information: Array = (np.exp(log_answers) * (log_answers - log_mean)).sum(axis=1)
    return information


def clearly_better(one: Answers, other: Answers, *, significance: float) -> bool:
    """Return whether ``one`` is better than ``other`` beyond chance, on the same images.

    A one-sided t test of the losses of eight images or more says so. With labels at least as many images must be right,
    and the loss must be less by .02 nats: below, two ways are alike, as both may get every image right. Without labels
    the gain must be a fifth, as contrast alone moves the information by less.
    """
    if one.num_correct is None or other.num_correct is None:
        gains = -one.mean_loss > 1.2 * -other.mean_loss
    else:
        gains = one.num_correct >= other.num_correct and other.mean_loss - one.mean_loss > 0.02
    enough = len(one.loss) >= _LEAST_IMAGES
    return enough and gains and mean_is_above_zero(other.loss - one.loss, significance=significance)


def tells_classes_apart(scores: Array, labels: npt.NDArray[np.int64], *, significance: float) -> bool:
    """Return whether more answers are right than if answers and labels were shuffled against each other.

    A model that answers everything alike is right as often as that class occurs, under any order of the classes; that
    says nothing about the order. By :func:`mean_is_above_zero`, over the share that is right of labels in any order.
    """
    answers = scores.argmax(axis=1)
    by_chance = np.bincount(labels, minlength=scores.shape[1])[answers] / len(labels)
    return mean_is_above_zero((answers == labels) - by_chance, significance=significance)


def mean_is_above_zero(gains: Array, *, significance: float) -> bool:
    """Return whether the mean of paired ``gains`` (n,) is above 0 beyond chance, one-sided.

    By a t test; of fewer than eight, which say little about their spread, by all changes of their signs.
    """
    count, mean = len(gains), float(gains.mean()) if len(gains) else 0.0
    if mean <= 0:
        return False
    if count >= _LEAST_IMAGES:
        spread = gains.std(ddof=1) / math.sqrt(count)
        return bool(np.ptp(gains) <= 1e-9 or stdtr(count - 1, -mean / spread) <= significance)
    signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    return float((signs @ gains / count >= mean - 1e-12).mean()) <= significance
