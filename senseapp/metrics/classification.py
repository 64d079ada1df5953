"""Metrics of class scores, (N, num_classes).

A row of class scores that holds a nan names no class: it counts as wrong and as disagreeing. Ties go to the lowest
class index, so constant class scores always name class 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidInput
from senseapp.metrics.base import Metric, Moments, kl_terms, powers
from senseapp.metrics.bounds import upper_bound_of_net_share
from senseapp.metrics.intervals import Interval, discordant_interval, ratio_interval
from senseapp.metrics.records import (
    HARM,
    SHARE,
    SMOOTHED,
    UNCHANGED,
    RowMetric,
    of_divergence,
    of_lost_share,
    of_rise,
    unbounded,
)

if TYPE_CHECKING:
    from torch import Tensor


def check_labels(targets: Tensor, num_images: int, num_outputs: int) -> None:
    """Raise InvalidInput for labels that are not one class index for each image."""
    if targets.shape != (num_images,):
        raise InvalidInput(f"{num_images} images need as many labels, got {tuple(targets.shape)}.")
    if bool(((targets < 0) | (targets >= num_outputs)).any()):
        raise InvalidInput(
            f"Labels must be class indices from 0 to {num_outputs - 1}, got {int(targets.min())} to "
            f"{int(targets.max())}. Check that the images' classes are those of the model."
        )


@dataclass(frozen=True, kw_only=True)
class ClassificationMetric(RowMetric):
    """A metric of class scores and class indices."""

    rows: ClassVar[str] = "Class scores"
    columns: ClassVar[str] = "classes"
    task: str = "classification"
    check_targets = staticmethod(check_labels)


@dataclass(frozen=True, kw_only=True)
class TopAccuracy(ClassificationMetric):
    """The share of images whose label is among the ``k`` highest scores."""

    k: int

    def terms(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return the powers of the change, -1, 0 or 1."""
        assert targets is not None  # check has seen to it
        before = _in_top(baseline_output, targets, self.k)
        return powers(before, before - _in_top(output, targets, self.k))

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the interval of a difference of paired shares."""
        return discordant_interval(*_worse_and_better(moments), int(moments[0]), confidence)

    def upper_bound(self, moments: Moments, confidence: float = 0.95) -> float:
        """Return the bound of a difference of paired shares."""
        return upper_bound_of_net_share(*_worse_and_better(moments), int(moments[0]), confidence)


def _worse_and_better(moments: Moments) -> tuple[int, int]:
    """Return how many images are right before only, and how many after only."""
    changed, excess = round(moments[3]), round(moments[2])
    return (changed + excess) // 2, (changed - excess) // 2


def _changed_classes(before: Tensor, after: Tensor, _targets: object) -> tuple[Tensor, ...]:
    return of_lost_share(1 - _in_top(after, before.argmax(1), 1) * ~before.isnan().any(1))


def _risen_loss(before: Tensor, after: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Return the terms of the rise of each image's negative log probability of its label, in nats."""
    return of_rise(*(-scores.log_softmax(1).gather(1, targets[:, None]).squeeze(1) for scores in (before, after)))


@dataclass(frozen=True, kw_only=True)
class KLDivergence(ClassificationMetric):
    """The mean KL divergence of the compressed model's probabilities from the uncompressed model's."""

    def terms(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return the powers of the divergence, in nats."""
        reference = baseline_output.log_softmax(1)
        return of_divergence(kl_terms(reference, output.log_softmax(1)).sum(1), reference.isnan().any(1))

    def recorded(self, baseline_output: Tensor, output: Tensor) -> Tensor:
        """Return the logarithms of probabilities: of the original's likeliest classes, and of all others as one."""
        probability, kept = output.float().softmax(1), self.recorded_size(output.shape[1])
        if kept < output.shape[1]:
            found = probability.gather(1, baseline_output.float().topk(kept - 1, dim=1).indices)
            others = (1 - found.sum(1, keepdim=True)).clamp_min(0)
            probability = found.new_empty(len(found), kept)
            probability[:, :-1], probability[:, -1:] = found, others
        return ((1 - SMOOTHED) * probability + SMOOTHED / kept).log()

    def together(
        self, recorded: NDArray[np.float64], changes: NDArray[np.float64], num_outputs: int
    ) -> NDArray[np.float64]:
        """Return ln Σ p eᶜ − Σ p c, the divergence from p of what is proportional to p eᶜ."""
        probability = np.exp(recorded)
        probability /= probability.sum(-1, keepdims=True)
        return np.asarray(np.log((probability * np.exp(changes)).sum(-1)) - (probability * changes).sum(-1))

    def changed_answers(
        self, recorded: NDArray[np.float64], changes: NDArray[np.float64], num_outputs: int
    ) -> NDArray[np.float64]:
        """Return 1 where another class is the likeliest, else 0."""
        return np.asarray((recorded + changes).argmax(-1) != recorded.argmax(-1), dtype=np.float64)

    def largest_estimate(self, num_classes: int) -> float:
        """Return ln(``num_classes``), as much as the original's answers hold."""
        return math.log(num_classes) if num_classes > 1 else math.inf


@dataclass(frozen=True, kw_only=True)
class SignalToNoise(Metric):
    """The power of the original output over that of the error, in dB; its delta is the inverse ratio.

    Moments are (n, Σ s, Σ e, Σ s², Σ e², Σ s e), with s the energy of one image's original output and e that of their
    error.
    """

    additive: bool = False

    def terms(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return s, e, s², e² and s e."""
        signal = (baseline_output**2).flatten(1).sum(1)
        error = unbounded(((baseline_output - output) ** 2).flatten(1).sum(1)).masked_fill(~signal.isfinite(), math.nan)
        return signal, error, signal**2, error**2, signal * error

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the interval of Σ e / Σ s."""
        num_samples, signal, error, *products = moments
        return ratio_interval(int(num_samples), (signal, error), (products[0], products[1], products[2]), confidence)

    def estimate(self, moments: Moments) -> tuple[float, float, float]:
        """Return infinity, the ratio in dB, and its inverse."""
        signal, error = moments[1], moments[2]
        ratio = 0.0 if error == 0 else error / signal if signal else math.inf
        decibels = math.inf if ratio == 0 else -10 * math.log10(ratio) if ratio < math.inf else -math.inf
        return math.inf, decibels, ratio

    def value_text(self, value: float) -> str:
        """Return the ratio as text: ``14.1 dB``."""
        return "no noise" if value == math.inf else f"{value:.1f} dB".replace("-", "−")


def _in_top(scores: Tensor, classes: Tensor, k: int) -> Tensor:
    """Return whether each row ranks its class among the first k, as 0.0 or 1.0, (N,)."""
    from torch import arange  # loaded by whoever made the scores

    score = scores.gather(1, classes[:, None])  # (N, 1)
    index = arange(scores.shape[1], device=scores.device)
    ahead = (scores > score) | ((scores == score) & (index < classes[:, None]))  # (N, num_classes)
    return ((ahead.sum(1) < k) & ~scores.isnan().any(1)).double()


TOP1 = TopAccuracy(
    **SHARE,
    needs_labels=True,
    counted="answers",
    name="top1",
    k=1,
    label="Right answers",
    change_title="Loss of right answers",
    term="Top-1 accuracy",
    term_change="Drop in top-1 accuracy",
    help="Share of images whose first guess is right. Easy to explain; needs labels and many images.",
    primary=True,
    kept="keep {} of the answers right",
)
TOP5 = TopAccuracy(
    **SHARE,
    needs_labels=True,
    counted="answers",
    name="top5",
    k=5,
    label="Top-5 accuracy",
    change_title="Drop in top-5 accuracy",
    help="Share of images whose label is among the first five guesses. Needs labels.",
    min_classes=6,
)
LOSS = ClassificationMetric(
    of_images=_risen_loss,
    name="loss",
    label="Loss",
    change_title="Rise in loss",
    help="Cross-entropy with the labels. Notices small damage that does not yet change a guess.",
    value_unit="nats",
    change_unit="nats",
    notable=0.02,
    higher_is_better=False,
    needs_labels=True,
    axis_title="Rise in cross-entropy loss",
    value_title="Cross-entropy loss",
    finding=", {} of loss",
)
KL = KLDivergence(
    **HARM,
    name="kl",
    term="KL divergence",
    help="How far the answers move from the original model's. Needs no labels and sees the smallest changes. 0: they "
    "stay as they are; up to 0.02 hardly shows; 0.6 and more is much.",
    notable=0.02,
    axis_title="Harm to the answers",
)
AGREEMENT = ClassificationMetric(
    **UNCHANGED,
    of_images=_changed_classes,
    # Answers change first between which the model hardly chose, right or wrong: EfficientNet-Lite0 with 8 bits in each
    # layer changes 4.5 % of its answers to crops of photographs, at a KL divergence of .001 nats.
    notable_of_all=0.05,
    name="agreement",
    label="Answers that stay",
    change_title="Share of changed answers",
    term="Top-1 agreement",
    term_change="Drop in agreement",
    help="Share of images whose first guess stays the same. Needs no labels.",
    counted="answers",
    finding=" changes {} of the answers",
    kept="keep {} of the answers",
)
SQNR = SignalToNoise(
    name="sqnr",
    label="Output noise",
    change_title="Output noise",
    term="Output noise (SQNR)",
    term_change="Output noise",
    help="Noise that compression adds to the output, as a share of its power. Needs no labels.",
    value_unit="dB",
    notable=0.01,
    axis_title="Noise in the output, relative to its power",
    value_title="Signal to noise",
    finding=", {} noise per signal",
)
