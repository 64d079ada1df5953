"""Which images a compressed model answers differently, and which classes pay for it.

Intervals of classes are Tango's (paired right and wrong answers) or mid-P (answers that change), each with confidence
1 − 0.05 / K for K classes (Bonferroni), so that all of them hold together with 95 %: a class whose interval excludes
the mean drop is not one of many looked at that stands out by chance.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from senseapp.data.images import ImageSet, PreparedImages
from senseapp.data.pictures import png_of
from senseapp.metrics.intervals import discordant_interval, proportion_interval
from senseapp.records.changed_answers import ChangedAnswers, ChangedPicture, ClassDrop
from senseapp.schedules.apply import AppliedModel
from senseapp.schedules.evaluator import ScheduleEvaluator

_MOST_PICTURES = 12
_MOST_CLASSES = 20
_SIGNIFICANCE = 0.05
Counts = npt.NDArray[np.int64]


def changed_answers(
    evaluator: ScheduleEvaluator, applied: AppliedModel, images: ImageSet, *, subject: str
) -> ChangedAnswers | None:
    """Compare the answers of ``applied`` and the uncompressed model; None where the task's outputs are no answers."""
    task = evaluator.dense.task
    answers = task.answers(evaluator.baseline_outputs(images))
    compressed = task.answers(evaluator.outputs(applied, images))
    if answers is None or compressed is None:
        return None
    (before, sure_before), (after, sure_after) = answers, compressed
    changed = before != after
    order = torch.argsort(sure_before.masked_fill(~changed, -1.0), descending=True, stable=True)
    shown: list[int] = order[: min(_MOST_PICTURES, int(changed.sum()))].tolist()

    def named(index: int) -> str:
        return task.target_text(torch.tensor(index), evaluator.class_names)

    drop, classes, num_classes = _classes(before, after, images.labels, named)
    return ChangedAnswers(
        subject=subject,
        num_changed=int(changed.sum()),
        num_images=len(images),
        by_labels=images.labels is not None,
        drop=drop,
        pictures=tuple(
            ChangedPicture(
                name=images.names[index],
                png=_thumbnail(images, index),
                label="" if images.labels is None else named(int(images.labels[index])),
                before=named(int(before[index])),
                after=named(int(after[index])),
                sure_before=float(sure_before[index]),
                sure_after=float(sure_after[index]),
            )
            for index in shown
        ),
        classes=classes,
        num_classes=num_classes,
    )


def class_drops(
    worse: Counts, better: Counts, totals: Counts, named: Callable[[int], str], *, by_labels: bool
) -> tuple[ClassDrop, ...]:
    """Return what each class with images loses, the worst first; counts are by class, (K,)."""
    present = np.flatnonzero(totals)
    confidence = 1 - _SIGNIFICANCE / max(1, len(present))
    mean = float((worse - better).sum() / max(1, totals.sum()))
    found = []
    for index in present.tolist():
        lost, won, count = int(worse[index]), int(better[index]), int(totals[index])
        if by_labels:
            low, high = discordant_interval(lost, won, count, confidence)
        else:
            low, high = proportion_interval(lost, count, confidence)
        found.append(
            ClassDrop(
                name=named(index),
                num_images=count,
                drop=(lost - won) / count,
                low=low,
                high=high,
                stands_out=not low <= mean <= high,
            )
        )
    return tuple(sorted(found, key=lambda each: -each.drop))


def _classes(
    before: Tensor, after: Tensor, labels: Tensor | None, named: Callable[[int], str]
) -> tuple[float, tuple[ClassDrop, ...], int]:
    """Return the mean drop, the classes that lose most, and how many there are."""
    if labels is None:
        owner, worse, better = before, before != after, torch.zeros_like(before, dtype=torch.bool)
    else:
        owner, right, still = labels, before == labels, after == labels
        worse, better = right & ~still, ~right & still
    size = int(max(owner.max(), before.max())) + 1
    lost, won, totals = (np.bincount(owner[chosen].numpy(), minlength=size) for chosen in (worse, better, owner >= 0))
    drops = class_drops(lost, won, totals, named, by_labels=labels is not None)
    return float((lost - won).sum() / len(owner)), drops[:_MOST_CLASSES], len(drops)


def _thumbnail(images: ImageSet, index: int) -> bytes:
    """Return one picture as the network sees it; nothing of images that are no pictures."""
    if not isinstance(images, PreparedImages):
        return b""
    picture = images.pixels[images.rows[index]]  # (C, H, W)
    colours = picture[:3] if len(picture) >= 3 else picture[:1].expand(3, -1, -1)
    return png_of(colours.permute(1, 2, 0).contiguous().numpy())
