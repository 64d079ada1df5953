"""Metrics of multi-label heads: logits (N, labels), each of a Bernoulli variable of its own.

Targets are (N, labels): 1 where a label is true of an image, 0 where it is not, NaN where nobody knows. Unknown ones
are left out of each image's mean. Means are over the labels of an image first, then over the images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidInput
from senseapp.metrics.base import kl_terms, powers
from senseapp.metrics.records import HARM, SHARE, SMOOTHED, UNCHANGED, RowMetric, of_divergence, of_lost_share, of_rise

if TYPE_CHECKING:
    from torch import Tensor


def check_truths(targets: Tensor, num_images: int, num_outputs: int) -> None:
    """Raise InvalidInput for targets that are not 0, 1 or NaN for each label of each image, at least one known."""
    if targets.shape != (num_images, num_outputs):
        raise InvalidInput(
            f"{num_images} images need {num_outputs} truths each, one for each output of the model, got shape "
            f"{tuple(targets.shape)}. Check that the label columns are those of the model."
        )
    known = ~targets.isnan()
    if bool((known & (targets != 0) & (targets != 1)).any()) or not bool(known.any(1).all()):
        raise InvalidInput("Each image needs at least one known label, and each label must be 0, 1 or unknown (NaN).")


@dataclass(frozen=True, kw_only=True)
class MultilabelMetric(RowMetric):
    """A metric of logits, and of truths where it needs labels."""

    rows: ClassVar[str] = "Logits"
    columns: ClassVar[str] = "labels"
    task: str = "multilabel"
    check_targets = staticmethod(check_truths)


@dataclass(frozen=True, kw_only=True)
class BernoulliDivergence(MultilabelMetric):
    """The mean KL divergence, over labels, of the compressed model's Bernoulli distributions from the original's."""

    def terms(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return the powers of the divergence, in nats."""
        return of_divergence(bernoulli_divergence(baseline_output, output).mean(1), baseline_output.isnan().any(1))

    def recorded(self, baseline_output: Tensor, output: Tensor) -> Tensor:
        """Return the logits of the labels that the original model is least sure of; interactions of others are left."""
        kept = self.recorded_size(output.shape[1])
        unsure = baseline_output.float().abs().topk(kept, dim=1, largest=False).indices.sort(dim=1).values
        probability = output.float().sigmoid().gather(1, unsure)
        smoothed: Tensor = ((1 - SMOOTHED) * probability + SMOOTHED / 2).logit()
        return smoothed

    def together(
        self, recorded: NDArray[np.float64], changes: NDArray[np.float64], num_outputs: int
    ) -> NDArray[np.float64]:
        """Return Σ (ln(1 + eˡ⁺ᶜ) − ln(1 + eˡ) − c p) over labels, by the number of all: the divergence of l + c."""
        probability = 1 / (1 + np.exp(-recorded))
        grown = np.logaddexp(0, recorded + changes) - np.logaddexp(0, recorded)
        return np.asarray((grown - changes * probability).sum(-1) / num_outputs)

    def changed_answers(
        self, recorded: NDArray[np.float64], changes: NDArray[np.float64], num_outputs: int
    ) -> NDArray[np.float64]:
        """Return the share of all labels of which the recorded ones change sides."""
        return np.asarray(((recorded + changes > 0) != (recorded > 0)).sum(-1) / num_outputs)

    def largest_estimate(self, num_classes: int) -> float:
        """Return ln 2, as much as the original's answer to a label holds."""
        return math.log(2)


def _lost_precision(before: Tensor, after: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    was, now = (average_precision(logits, targets) for logits in (before, after))
    return powers(was, was - now)


def _risen_loss(before: Tensor, after: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    return of_rise(*(binary_cross_entropy(logits, targets) for logits in (before, after)))


def _changed_labels(before: Tensor, after: Tensor, _targets: object) -> tuple[Tensor, ...]:
    """Return the terms of the share of each image's labels that change; all of them where one is NaN."""
    undefined = (before.isnan() | after.isnan()).any(1)
    return of_lost_share(((before > 0) != (after > 0)).double().mean(1).masked_fill(undefined, 1.0))


def average_precision(logits: Tensor, targets: Tensor) -> Tensor:
    """Return each image's ranking precision, (N,), float64; 0 for a row of logits with a NaN.

    For each true label of an image: of the labels that score at least as high, the share that is true; the mean over
    the true labels, and 1 where none or all are true.

    Source: Schapire and Singer (2000), BoosTexter, Machine Learning 39, section 5; scikit-learn calls it
    ``label_ranking_average_precision_score``.
    """
    import torch

    is_true, known = targets == 1, ~targets.isnan()
    scores = logits.double()
    num_labels = logits.shape[1]

    def at_least(counted: Tensor) -> Tensor:
        """Return how many of the ``counted`` labels score at least as high as each label, (N, labels)."""
        order = scores.masked_fill(~counted, -torch.inf).sort(dim=1).values
        return num_labels - torch.searchsorted(order, scores.contiguous(), side="left")

    ranks, hits = at_least(known), at_least(is_true)
    precision = torch.where(is_true & known, hits.double() / ranks.clamp_min(1), 0.0).sum(1)
    num_true, num_known = is_true.sum(1), known.sum(1)
    found = torch.where((num_true == 0) | (num_true == num_known), 1.0, precision / num_true.clamp_min(1))
    return found.masked_fill(logits.isnan().any(1), 0.0)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of each image's known labels, (N,), differentiable."""
    from torch.nn.functional import logsigmoid

    known = ~targets.isnan()
    losses = -logsigmoid(logits.where(targets == 1, -logits))
    return losses.masked_fill(~known, 0.0).sum(1) / known.sum(1).clamp_min(1)


def bernoulli_divergence(before: Tensor, after: Tensor) -> Tensor:
    """Return KL(Bernoulli(σ(``before``)) ‖ Bernoulli(σ(``after``))) of each logit, in nats."""
    from torch.nn.functional import logsigmoid

    true, false = (kl_terms(logsigmoid(sign * before), logsigmoid(sign * after)) for sign in (1, -1))
    return true + false


LRAP = MultilabelMetric(
    **SHARE,
    of_images=_lost_precision,
    least_loss=-1.0,
    most_loss=1.0,
    name="lrap",
    label="Ranking precision",
    change_title="Drop in ranking precision",
    term="Ranking precision (LRAP)",
    term_change="Drop in ranking precision",
    help="Mean average precision of each image's ranking of labels. Needs labels and two labels at least.",
    needs_labels=True,
    min_classes=2,
    primary=True,
    kept="keep a ranking precision of {}",
)
BCE = MultilabelMetric(
    of_images=_risen_loss,
    name="bce",
    label="Binary cross-entropy",
    change_title="Rise in binary cross-entropy",
    help="Mean over labels. Notices small damage that does not yet change a label. Needs labels.",
    value_unit="nats",
    change_unit="nats",
    notable=0.002,
    higher_is_better=False,
    needs_labels=True,
    finding=", {} of binary cross-entropy",
)
BERNOULLI_KL = BernoulliDivergence(
    **HARM,
    name="bernoulli_kl",
    term="KL divergence of labels",
    help="How far each label's probability moves from the original model's, mean over labels. Needs no labels and sees "
    "the smallest changes. 0: they stay as they are; up to 0.002 hardly shows; 0.06 and more is much.",
    notable=0.002,
    axis_title="Harm to the labels",
)
LABEL_AGREEMENT = MultilabelMetric(
    **UNCHANGED,
    of_images=_changed_labels,
    notable_of_all=0.05,  # as of the agreement of classes
    name="label_agreement",
    label="Labels that stay",
    change_title="Share of changed labels",
    term="Label agreement",
    term_change="Drop in label agreement",
    help="Share of labels, over images and labels, that stay on the same side of logit 0. Needs no labels.",
    counted="labels",
    finding=" changes {} of the labels",
    kept="keep {} of the labels",
)
