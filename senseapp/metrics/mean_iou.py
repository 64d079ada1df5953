"""Mean intersection over union: of all images together, a mean over classes, with an interval from compact sums.

The IoU of a class is (pixels that are of it and found to be) / (pixels that are of it or found to be), with sums over
all images; the mean is over the classes that occur in the truth. It is no mean over images, so images are assigned at
random, by their content, to :data:`GROUPS` groups, and the sums of each group are kept: their number does not grow with
the images. The interval is that of the mean of the pseudo-values that leave out one group at a time.

Source: Wolter (2007), Introduction to Variance Estimation, 2nd ed., sections 2.4 and 4.2 (random groups, jackknife).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.metrics.base import AnswerDrop, Interval, Moments
from senseapp.metrics.segmentation import (
    VOID,
    SegmentationMetric,
    classes_of,
    log_probabilities_of,
    masks_like,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


GROUPS = 32  # the interval has one degree of freedom less; each group holds sums over all classes
_SUMS = 5  # true pixels; then of both networks the pixels found and those found rightly
_COUNTED_TOGETHER = 2**22  # pixels, which bounds the memory
_MULTIPLIER = 2654435761  # Knuth, The Art of Computer Programming, volume 3, section 6.4


@dataclass(frozen=True, kw_only=True)
class MeanIou(SegmentationMetric):
    """The mean IoU with masks, or with what the uncompressed model finds where it ``needs_labels`` not.

    Moments are (n, sums): for each group and class the true pixels, those found before and after compression, and those
    of them that are right before and after.
    """

    proof_only: bool = True

    def terms(self, baseline_output: Any, output: Any, targets: Any) -> tuple[Tensor, ...]:
        """Raise: there are no terms to sum."""
        raise NotImplementedError(f"{self.name} is no mean over images.")

    def moments(self, baseline_output: Any, output: Any, targets: Any) -> tuple[float, ...]:
        """Return the number of images and the sums of each group."""
        self.check(baseline_output, output, targets)
        num_classes = log_probabilities_of(output).shape[2]
        before, after = classes_of(baseline_output), classes_of(output)
        masks = masks_like(targets, after) if self.needs_labels else before
        counts = _counts(masks, before, after, num_classes)  # (N, classes, sums)
        sums = counts.new_zeros(GROUPS, num_classes, _SUMS).index_add_(
            0, _groups(log_probabilities_of(baseline_output)), counts
        )
        return (float(len(after)), *sums.flatten().tolist())

    def estimate(self, moments: Moments) -> tuple[float, float, float]:
        """Return the mean IoU before, after, and the drop; not a number where no class occurs."""
        totals = _grouped(moments).sum(0)
        occurs = totals[:, 0] > 0
        if not occurs.any():
            return math.nan, math.nan, math.nan
        before, after = (float(_iou(totals[occurs], side).mean()) for side in (0, 1))
        return before, after, before - after

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the interval of the drop of the mean: all there is where no class of any pixel is known."""
        grouped = _grouped(moments)
        return (-1.0, 1.0) if moments[0] and not len(grouped) else _interval(grouped, confidence)

    def of_classes(self, moments: Moments, confidence: float = 0.95) -> tuple[AnswerDrop, ...]:
        """Return what each class that occurs loses of its IoU, with an interval of its own."""
        grouped = _grouped(moments)
        totals = grouped.sum(0)
        drops, found = _iou(totals, 0) - _iou(totals, 1), []
        for index in (int(each) for each in (totals[:, 0] > 0).nonzero()[0]):
            low, high = _interval(grouped[:, [index]], confidence)
            found.append(AnswerDrop(index=index, drop=float(drops[index]), low=low, high=high))
        return tuple(found)


def _grouped(moments: Moments) -> NDArray[np.float64]:
    """Return the sums, (groups, classes, sums), of groups with images."""
    import numpy as np

    sums = np.asarray(moments[1:], dtype=np.float64).reshape(GROUPS, -1, _SUMS)
    return sums[sums.any(axis=(1, 2))]


def _union(sums: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    return sums[..., 0] + sums[..., 1 + side] - sums[..., 3 + side]


def _iou(totals: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    """Return the IoU of each class before (``side`` 0) or after compression (1); 0 where it does not occur."""
    import numpy as np

    union = _union(totals, side)
    return np.divide(totals[..., 3 + side], union, out=np.zeros_like(union), where=union > 0)


def _mean_drop(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the drop of the mean IoU over classes that occur, (...), from sums (..., classes, sums)."""
    import numpy as np

    occurs = totals[..., 0] > 0
    drops = np.where(occurs, _iou(totals, 0) - _iou(totals, 1), 0.0).sum(-1)
    return np.asarray(drops / np.maximum(1, occurs.sum(-1)))


def _interval(grouped: NDArray[np.float64], confidence: float) -> Interval:
    """Return the interval of the mean drop from the sums of groups, (groups, classes, sums)."""
    from senseapp.metrics.intervals import mean_interval

    count, totals = len(grouped), grouped.sum(0)
    drop = float(_mean_drop(totals))
    pseudo = count * drop - (count - 1) * _mean_drop(totals - grouped)
    moved = drop - float(pseudo.mean()) if count else 0.0
    sums = float(pseudo.sum()), float((pseudo**2).sum()), float((pseudo**3).sum())
    low, high = mean_interval(count, sums, confidence)
    return max(-1.0, low + moved), min(1.0, high + moved)


def _counts(masks: Tensor, before: Tensor, after: Tensor, num_classes: int) -> Tensor:
    """Return for each image and class what :class:`MeanIou` sums, float64 (N, classes, sums)."""
    import torch

    together = max(1, _COUNTED_TOGETHER // max(1, masks[0].numel() if len(masks) else 1))
    parts = []
    for low in range(0, len(masks), together):
        truth = masks[low : low + together].flatten(1).long()
        first, second = (each[low : low + together].flatten(1).long() for each in (before, after))
        known = truth != VOID
        columns = [
            _histogram(truth, known, num_classes),
            _histogram(first, known, num_classes),
            _histogram(second, known, num_classes),
            _histogram(truth, known & (truth == first), num_classes),
            _histogram(truth, known & (truth == second), num_classes),
        ]
        parts.append(torch.stack(columns, dim=2))
    return torch.cat(parts) if parts else torch.zeros(0, num_classes, _SUMS, dtype=torch.float64)


def _histogram(classes: Tensor, counted: Tensor, num_classes: int) -> Tensor:
    """Return how many ``counted`` pixels of each image are of each class, float64 (N, classes)."""
    import torch

    counted = counted & (classes < num_classes)
    rows = torch.arange(len(classes), device=classes.device)[:, None] * num_classes
    found = (classes + rows)[counted].bincount(minlength=len(classes) * num_classes)
    return found.reshape(len(classes), num_classes).double()


def _groups(log_probabilities: Tensor) -> Tensor:
    """Return the group of each image, int64 (N,), from the bits of all its probabilities, (N, P, C)."""
    import torch

    bits = log_probabilities.float().flatten(1).contiguous().view(torch.int32)
    places = (torch.arange(bits.shape[1], device=bits.device) * _MULTIPLIER % 2**31) | 1
    together = max(1, _COUNTED_TOGETHER // max(1, bits.shape[1]))
    sums = [(bits[low : low + together].long() * places).sum(1) for low in range(0, len(bits), together)]
    total = torch.cat(sums) if sums else bits.new_zeros(0).long()
    return (total * _MULTIPLIER >> 16) % GROUPS


MIOU = MeanIou(
    name="miou",
    label="Mean IoU",
    change_title="Drop in mean IoU",
    help="Intersection over union of found and true pixels of each class over all images, a mean over the classes that "
    "occur. Needs masks; void pixels (255) are left out.",
    value_unit="%",
    change_unit="points",
    notable=0.01,
    needs_labels=True,
    kept="keep a mean IoU of {}",
)
MIOU_AGREEMENT = MeanIou(
    name="miou_agreement",
    label="Mean IoU with the original",
    change_title="Drop in mean IoU with the original",
    help="Mean IoU with the original model's classes in place of masks. Needs no masks.",
    value_unit="%",
    change_unit="points",
    notable=0.01,
    kept="keep a mean IoU of {} with the original",
)
