"""Per-image metrics of class scores, summed into moments.

Every metric compares the compressed model with the original one on the same images. Moments are sums over images
in float64, so those of batches, chunks and shards add up (:func:`senseapp.evaluate.add_moments`).

A row of class scores that holds a nan names no class: it counts as wrong and as disagreeing. Ties go to the lowest
class index, so constant class scores always name class 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from senseapp.errors import InvalidInput
from senseapp.evaluate.changes import check_metric
from senseapp.results.metrics import METRIC_FACTS

PairedMetric = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, ...]]


def metric_names(*, has_labels: bool, num_classes: int) -> tuple[str, ...]:
    """Names of the metrics that can be measured; top-5 only says something with more than five classes."""
    return tuple(
        name
        for name, facts in METRIC_FACTS.items()
        if (has_labels or not facts.needs_labels) and (name != "top5" or num_classes > 5)
    )


def moments_of(metric: str, baseline_logits: Tensor, logits: Tensor, labels: Tensor | None) -> tuple[float, ...]:
    """Sum ``metric``'s per-image terms over a batch.

    Args:
        metric: its name.
        baseline_logits: class scores of the original model, (N, num_classes), any float type.
        logits: those of the compressed model, same shape.
        labels: class index of each image, (N,); may be None for metrics that need no labels.

    Returns:
        Plain float64 numbers; see :mod:`senseapp.evaluate.changes` for which.

    Raises:
        InvalidInput: unknown metric, shapes that do not match, labels missing or out of range.
    """
    check_metric(metric)
    _check_shapes(baseline_logits, logits)
    if METRIC_FACTS[metric].needs_labels:
        if labels is None:
            raise InvalidInput(f"The metric {metric} needs labelled images. Choose kl, agreement or sqnr.")
        check_labels(labels, *logits.shape)
    with torch.inference_mode():
        terms = METRICS[metric](baseline_logits.double(), logits.double(), labels)
        return (float(len(logits)), *(float(term.sum()) for term in terms))


def _check_shapes(baseline_logits: Tensor, logits: Tensor) -> None:
    if logits.ndim != 2 or baseline_logits.shape != logits.shape:
        raise InvalidInput(
            "Class scores must be (images, classes), alike before and after compression; got "
            f"{tuple(baseline_logits.shape)} before and {tuple(logits.shape)} after."
        )


def check_labels(labels: Tensor, num_images: int, num_classes: int) -> None:
    """Refuse labels that are not one class index for each image.

    Raises:
        InvalidInput: with what was wrong.
    """
    if labels.shape != (num_images,):
        raise InvalidInput(f"{num_images} images need as many labels, got {tuple(labels.shape)}.")
    if bool(((labels < 0) | (labels >= num_classes)).any()):
        raise InvalidInput(
            f"Labels must be class indices from 0 to {num_classes - 1}, got {int(labels.min())} to "
            f"{int(labels.max())}. Check that the images' classes are those of the model."
        )


def _in_top(logits: Tensor, classes: Tensor, k: int) -> Tensor:
    """Whether each row ranks its class among the first k, as 0.0 or 1.0, (N,)."""
    score = logits.gather(1, classes[:, None])  # (N, 1)
    index = torch.arange(logits.shape[1], device=logits.device)
    ahead = (logits > score) | ((logits == score) & (index < classes[:, None]))  # (N, num_classes)
    return ((ahead.sum(1) < k) & ~logits.isnan().any(1)).double()


def _powers(baseline: Tensor, difference: Tensor) -> tuple[Tensor, ...]:
    return baseline, difference, difference**2, difference**3


def _top(k: int) -> PairedMetric:
    def paired(baseline_logits: Tensor, logits: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        assert labels is not None  # moments_of has checked
        before = _in_top(baseline_logits, labels, k)
        return _powers(before, before - _in_top(logits, labels, k))

    return paired


def _agreement(baseline_logits: Tensor, logits: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
    same = _in_top(logits, baseline_logits.argmax(1), 1) * ~baseline_logits.isnan().any(1)
    return _powers(torch.ones_like(same), 1 - same)


def _loss(baseline_logits: Tensor, logits: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
    assert labels is not None  # moments_of has checked
    before = -_log_probabilities(baseline_logits).gather(1, labels[:, None]).squeeze(1)
    after = -_log_probabilities(logits).gather(1, labels[:, None]).squeeze(1)
    return _powers(before, torch.where(before.isfinite(), _unbounded(after) - before, torch.nan))


def _kl(baseline_logits: Tensor, logits: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
    reference = _log_probabilities(baseline_logits)
    probability = reference.exp()
    # a class that the original rules out adds nothing, whatever the compressed model says of it
    terms = torch.where(probability == 0, 0.0, probability * (reference - _log_probabilities(logits)))
    divergence = _unbounded(terms.sum(1)).clamp_min(0)  # rounding can leave -1e-17
    divergence = torch.where(reference.isnan().any(1), torch.nan, divergence)
    return _powers(torch.zeros_like(divergence), divergence)


def _sqnr(baseline_logits: Tensor, logits: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
    signal = (baseline_logits**2).sum(1)
    error = _unbounded(((baseline_logits - logits) ** 2).sum(1))
    error = torch.where(signal.isfinite(), error, torch.nan)
    return signal, error, signal**2, error**2, signal * error


def _log_probabilities(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, dim=1)


def _unbounded(values: Tensor) -> Tensor:
    """Read a result that is not a number as damage without bound."""
    return torch.where(values.isnan(), torch.inf, values)


METRICS: dict[str, PairedMetric] = {
    "top1": _top(1),
    "top5": _top(5),
    "loss": _loss,
    "kl": _kl,
    "agreement": _agreement,
    "sqnr": _sqnr,
}
