"""Differences between two predictions of pixel classes on the same images, for display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from senseapp.metrics.base import AnswerDrop
from senseapp.metrics.mean_iou import MIOU, MIOU_AGREEMENT
from senseapp.metrics.predictions import Columns
from senseapp.metrics.segmentation import VOID, classes_of, log_probabilities_of, masks_like
from senseapp.tasks.base import AnswerChanges

_PIXELS_TOGETHER = 2**22  # which bounds the memory


def changes_of(before: Columns, after: Columns, masks: Tensor | None) -> AnswerChanges:
    """Return the changes; an image is changed where a pixel is. See :meth:`senseapp.tasks.Task.answer_changes`."""
    old, new = classes_of(before), classes_of(after)
    num_classes = log_probabilities_of(before).shape[2]
    changed = torch.cat([_share(old[part] != new[part]) for part in _parts(old)])
    truth = old if masks is None else masks_like(masks, old)
    metric = MIOU_AGREEMENT if masks is None else MIOU
    moments = metric.moments(before, after, masks)
    present = torch.stack([_present(truth[part], num_classes) for part in _parts(old)]).sum(0)

    def class_drops(confidence: float) -> Sequence[AnswerDrop]:
        drops = metric.of_classes(moments, confidence)
        return [replace(each, num_images=int(present[each.index])) for each in drops]

    kept = 1 - changed
    return AnswerChanges(
        changed=changed > 0,
        damage=changed,
        said=(
            f"Of 100 pixels, {_of_hundred(float(kept.mean()))} keep their class; in the picture that changes "
            f"most, {_of_hundred(float(kept.min()))}."
        ),
        captions=[f"{_of_hundred(share)} of 100 pixels keep their class" for share in kept.tolist()],
        class_drops=class_drops,
        measure="IoU with the original's classes" if masks is None else "IoU with the masks",
    )


def _of_hundred(share: float) -> str:
    """Return a share as pixels of a hundred; only all of them are 100."""
    text = f"{100 * share:.1f}"
    return "more than 99.9" if share < 1 and text == "100.0" else text.removesuffix(".0")


def _parts(classes: Tensor) -> list[slice]:
    together = max(1, _PIXELS_TOGETHER // max(1, classes[0].numel()))
    return [slice(low, low + together) for low in range(0, len(classes), together)]


def _share(changed: Tensor) -> Tensor:
    return changed.flatten(1).double().mean(1)


def _present(classes: Tensor, num_classes: int) -> Tensor:
    """Return in how many images each class occurs, int64 (classes,)."""
    rows = torch.arange(len(classes))[:, None] * (VOID + 1)
    found = (classes.flatten(1).long() + rows).flatten().bincount(minlength=len(classes) * (VOID + 1))
    return (found.reshape(len(classes), -1)[:, :num_classes] > 0).sum(0)
