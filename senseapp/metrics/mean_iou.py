"""Mean intersection over union of all images together: a mean over the classes that occur in the truth.

The IoU of a class is (pixels that are of it and found to be) / (pixels that are of it or found to be), with sums over
all images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.metrics.records import ClassMeanMetric, ClassValues, Record
from senseapp.metrics.rows import SHARE
from senseapp.metrics.segmentation import VOID, SegmentationMetric, classes_of, masks_like

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class MeanIou(ClassMeanMetric, SegmentationMetric):
    """The mean IoU with masks, or with what the uncompressed model finds where it ``needs_labels`` not.

    The record of an image has four numbers for each class that is there or found: the class, its true pixels, those
    found and those found rightly.
    """

    task: str = "segmentation"  # the bases differ
    proof_only: bool = True

    def moments(self, baseline_output: Any, output: Any, targets: Any) -> tuple[float, ...]:
        """Return the number of images and the records of each, before and after."""
        self.check(baseline_output, output, targets)
        before = classes_of(baseline_output)
        masks = masks_like(targets, before) if self.needs_labels else before
        return super().moments(baseline_output, output, masks)

    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        """Return the numbers of pixels of one image; void pixels count nowhere."""
        import torch

        truth, found = targets[index].flatten().long(), classes_of(predictions)[index].flatten().long()
        known = truth != VOID
        parts = (truth[known], found[known], truth[known & (truth == found)])
        pixels = torch.stack([each.bincount(minlength=VOID + 1)[:VOID] for each in parts], dim=1)  # (classes, 3)
        there = pixels.any(dim=1).nonzero()
        rows = torch.cat([there, pixels[there[:, 0]]], dim=1).flatten().tolist()
        return [float(number) for number in rows]

    def class_values(self, records: Sequence[Record], counts: NDArray[np.float64]) -> dict[int, ClassValues]:
        """Return the IoU of each class that occurs in the truth."""
        import numpy as np

        rows = np.array([(image, *record[at : at + 4]) for image, record in enumerate(records)
                         for at in range(0, len(record), 4)]).reshape(-1, 5)  # fmt: skip
        found = {}
        for label in np.unique(rows[rows[:, 2] > 0, 1]).tolist():
            own = rows[rows[:, 1] == label]
            true, predicted, right = (counts[:, own[:, 0].astype(int)] @ own[:, 2:]).T  # (draws,) each
            shares = np.divide(right, true + predicted - right, out=np.full(len(counts), np.nan), where=true > 0)
            found[int(label)] = ClassValues(int((own[:, 2] > 0).sum()), shares)
        return found


MIOU = MeanIou(
    **SHARE,
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
    name="miou_agreement",
    label="Mean IoU with the original",
    change_title="Drop in mean IoU with the original",
    help="Mean IoU with the original model's classes in place of masks. Needs no masks.",
    kept="keep a mean IoU of {} with the original",
)
