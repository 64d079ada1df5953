"""Predictions of segmentation networks, classes of pixels and probabilities on a grid of pixels, and their metrics.

Predictions have two columns. ``classes`` are uint8 (N, H, W), the class with the highest score; 255 where a score is
not a number. ``log_probabilities`` are float32 (N, P, C), at P positions that are the same for all images and networks.
Masks are uint8 (N, H, W) with class numbers, and 255 where no class is known (void): such pixels count nowhere. Masks
of another resolution are read at the nearest pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidInput
from senseapp.metrics.base import Metric, Moments, kl_terms
from senseapp.metrics.intervals import Interval, mean_interval
from senseapp.metrics.predictions import Columns
from senseapp.metrics.records import (
    HARM,
    SHARE,
    UNCHANGED,
    ClassMeanMetric,
    ClassValues,
    Record,
    of_divergence,
    of_lost_share,
)

if TYPE_CHECKING:
    from torch import Tensor

TASK = "segmentation"
VOID = 255
"""Class number of pixels whose class nobody knows, padding among them; so networks have at most 255 classes."""
MOST_POSITIONS = 8192
"""Of an image, at which class probabilities are compared; outputs are upsampled from fewer in most networks."""

_COMPARED_TOGETHER = 8  # images, which bounds the memory


def predictions_of(scores: Tensor, most_bytes: int | None) -> Columns:
    """Return the columns of class scores (N, C, H, W), of which ``most_bytes`` may be kept for each image."""
    rows, columns = grid_of(tuple(scores.shape[1:]), most_bytes)
    kept = scores[:, :, rows][:, :, :, columns].flatten(2)  # (N, C, P)
    classes = scores.argmax(1)
    if bool(kept.isnan().any()) or bool(scores.isnan().any()):
        classes = classes.masked_fill(scores.isnan().any(1), VOID)
    return Columns(
        parts={"classes": classes.byte(), "log_probabilities": kept.float().log_softmax(1).transpose(1, 2).contiguous()}
    )


def grid_of(shape: tuple[int, ...], most_bytes: int | None) -> tuple[list[int], list[int]]:
    """Return rows and columns, in the middle of equal cells, at which probabilities of (C, H, W) are kept."""
    classes, height, width = shape
    most = MOST_POSITIONS
    if most_bytes is not None:
        most = min(most, max(1, (most_bytes - height * width) // (4 * classes)))
    rows = max(1, int(height * min(1.0, math.sqrt(most / (height * width)))))
    return _middles(height, rows), _middles(width, min(width, max(1, most // rows)))


def _middles(length: int, cells: int) -> list[int]:
    """Return the pixel in the middle of each of so many equal cells of an axis."""
    return [(2 * cell + 1) * length // (2 * cells) for cell in range(cells)]


def masks_like(masks: Tensor, classes: Tensor) -> Tensor:
    """Return masks (N, H', W') at the resolution of ``classes`` (N, H, W), by the nearest pixel."""
    from torch import tensor

    for axis in (1, 2):
        there, wanted = masks.shape[axis], classes.shape[axis]
        if there != wanted:
            masks = masks.index_select(axis, tensor(_middles(there, wanted), device=masks.device))
    return masks


def check_masks(targets: Tensor, num_images: int, num_outputs: int) -> None:
    """Raise InvalidInput for targets that are not one mask of known classes for each image."""
    if len(targets) != num_images or targets.ndim != 3:
        raise InvalidInput(f"{num_images} images need as many masks (H, W), got shape {tuple(targets.shape)}.")
    known = targets != VOID
    highest, num_known = int(targets.masked_fill(~known, 0).max()), int(known.sum())
    if not num_known:
        raise InvalidInput(
            "All pixels of all masks are void (255): masks hold the class number of each pixel, from 0. Write them so, "
            "or measure without masks."
        )
    if highest >= num_outputs:
        raise InvalidInput(
            f"Masks must hold class numbers below {num_outputs}, the model's number of classes, or 255 where no class "
            f"is known; got {highest}. Write them so, or measure without masks."
        )
    if num_outputs == 2 and highest == 0 and num_known < targets.numel():
        raise InvalidInput(
            "Masks hold only 0 and 255, and 255 says that no class is known. Write pixels of the second class as 1, or "
            "measure without masks."
        )


def _divergence(before: Columns, after: Columns, _targets: object) -> tuple[Tensor, ...]:
    """Return the terms of each image's mean divergence over its grid, in nats."""
    from torch import cat, split

    sides = [each.parts["log_probabilities"] for each in (before, after)]
    parts = zip(*(split(each, _COMPARED_TOGETHER) for each in sides), strict=True)
    means = cat([kl_terms(old, new).sum(2).mean(1) for old, new in parts])
    return of_divergence(means, sides[0].isnan().flatten(1).any(1))


def _changed_pixels(before: Columns, after: Columns, _targets: object) -> tuple[Tensor, ...]:
    old, new = before.parts["classes"], after.parts["classes"]
    return of_lost_share(((old != new) | (old == VOID)).flatten(1).double().mean(1))


@dataclass(frozen=True, kw_only=True)
class PixelAccuracy(Metric):
    """The share of all pixels with a known class that get it.

    Moments are (n, Σ right before, Σ d, Σ v, Σ d², Σ d v, Σ v², Σ d³, Σ d² v, Σ d v², Σ v³), with v the pixels of an
    image whose class is known and d by how many fewer of them are right after compression.
    """

    def terms(self, baseline_output: Columns, output: Columns, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return what :class:`PixelAccuracy` sums, in millions of pixels."""
        assert targets is not None  # check has seen to it
        masks = masks_like(targets, output.parts["classes"])
        known = (masks != VOID).flatten(1).double().sum(1) / 1e6
        before, after = (
            ((each.parts["classes"] == masks) & (masks != VOID)).flatten(1).double().sum(1) / 1e6
            for each in (baseline_output, output)
        )
        lost = before - after
        squares = lost**2, lost * known, known**2
        return before, lost, known, *squares, lost**3, squares[0] * known, squares[2] * lost, known**3

    def estimate(self, moments: Moments) -> tuple[float, float, float]:
        """Return the accuracy before, after, and the drop; not a number where no class of any pixel is known."""
        _, before, lost, known, *_ = moments
        if not known:
            return math.nan, math.nan, math.nan
        return before / known, (before - lost) / known, lost / known

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the interval of a ratio r of two sums over images: that of the mean of d − r v, by the delta method.

        Source: Cochran (1977), Sampling Techniques, 3rd ed., equation 6.13, without the finite population factor.
        """
        count, _, lost, known, *products = moments
        ratio = lost / known if known else math.nan
        square = float(np.dot((1.0, -2 * ratio, ratio**2), products[:3]))
        cube = float(np.dot((1.0, -3 * ratio, 3 * ratio**2, -(ratio**3)), products[3:]))
        low, high = mean_interval(int(count), (0.0, max(0.0, square), cube), confidence)
        if not known:
            return -1.0, 1.0
        scale = count / known
        return max(-1.0, ratio + scale * low), min(1.0, ratio + scale * high)

    def unchanged_upper_end(self, num_images: int) -> float:
        """Return 0: where no pixel changes, the interval of a ratio is a point."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class MeanIou(ClassMeanMetric):
    """The mean IoU with masks, or with what the uncompressed model finds where it ``needs_labels`` not.

    It is a mean over the classes that occur in the truth. The IoU of a class is (pixels that are of it and found to
    be) / (pixels that are of it or found to be), with sums over all images.

    The record of an image has four numbers for each class that is there or found: the class, its true pixels, those
    found and those found rightly.
    """

    proof_only: bool = True

    def moments(self, baseline_output: Any, output: Any, targets: Any) -> tuple[float, ...]:
        """Return the number of images and the records of each, before and after."""
        self.check(baseline_output, output, targets)
        before = baseline_output.parts["classes"]
        masks = masks_like(targets, before) if self.needs_labels else before
        return super().moments(baseline_output, output, masks)

    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        """Return the numbers of pixels of one image; void pixels count nowhere."""
        import torch

        truth, found = targets[index].flatten().long(), predictions.parts["classes"][index].flatten().long()
        known = truth != VOID
        parts = (truth[known], found[known], truth[known & (truth == found)])
        pixels = torch.stack([each.bincount(minlength=VOID + 1)[:VOID] for each in parts], dim=1)  # (classes, 3)
        there = pixels.any(dim=1).nonzero()
        rows = torch.cat([there, pixels[there[:, 0]]], dim=1).flatten().tolist()
        return [float(number) for number in rows]

    def class_values(self, records: Sequence[Record], counts: NDArray[np.float64]) -> dict[int, ClassValues]:
        """Return the IoU of each class that occurs in the truth."""
        rows = np.array([(image, *record[at : at + 4]) for image, record in enumerate(records)
                         for at in range(0, len(record), 4)]).reshape(-1, 5)  # fmt: skip
        found = {}
        for label in np.unique(rows[rows[:, 2] > 0, 1]).tolist():
            own = rows[rows[:, 1] == label]
            true, predicted, right = (counts[:, own[:, 0].astype(int)] @ own[:, 2:]).T  # (draws,) each
            shares = np.divide(right, true + predicted - right, out=np.full(len(counts), np.nan), where=true > 0)
            found[int(label)] = ClassValues(int((own[:, 2] > 0).sum()), shares)
        return found


DIVERGENCE = Metric(
    **HARM,
    of_images=_divergence,
    task=TASK,
    name="pixel_kl",
    term="KL divergence per pixel",
    help="How far the class probabilities of pixels move from the original model's, on average. Needs no masks and "
    "sees the smallest changes. 0: they stay as they are; up to 0.005 hardly shows; 0.15 and more is much.",
    notable=0.005,
    axis_title="Harm to the classes of pixels",
)
ACCURACY = PixelAccuracy(
    **SHARE,
    task=TASK,
    name="pixel_accuracy",
    label="Right pixels",
    change_title="Loss of right pixels",
    term="Pixel accuracy",
    term_change="Drop in pixel accuracy",
    help="Share of pixels that get the class of the mask, over all images. Needs masks; void pixels (255) count "
    "nowhere.",
    needs_labels=True,
    primary=True,
    counted="pixels",
    kept="keep {} of the pixels right",
)
AGREEMENT = Metric(
    **UNCHANGED,
    of_images=_changed_pixels,
    task=TASK,
    name="pixel_agreement",
    label="Pixels that stay",
    change_title="Share of changed pixels",
    term="Pixel agreement",
    term_change="Drop in pixel agreement",
    help="Share of pixels that keep the class that the original model gives them. Needs no masks.",
    counted="pixels",
    unchanged="keep their class",
    finding=" changes {} of the pixels",
    kept="keep {} of the pixels",
)
MIOU = MeanIou(
    **SHARE,
    task=TASK,
    name="miou",
    label="Mean IoU",
    change_title="Drop in mean IoU",
    help="Intersection over union of found and true pixels of each class over all images, a mean over the classes that "
    "occur. Needs masks; void pixels (255) are left out.",
    needs_labels=True,
    kept="keep a mean IoU of {}",
)
MIOU_AGREEMENT = MeanIou(
    **SHARE,
    task=TASK,
    name="miou_agreement",
    label="Mean IoU with the original",
    change_title="Drop in mean IoU with the original",
    help="Mean IoU with the original model's classes in place of masks. Needs no masks.",
    kept="keep a mean IoU of {} with the original",
)
