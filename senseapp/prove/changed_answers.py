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

from senseapp.data.images import ImageSet, PreparedImages
from senseapp.data.pictures import png_of
from senseapp.metrics.intervals import discordant_interval, proportion_interval
from senseapp.metrics.predictions import Predictions
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.records.answers import ChangedAnswers, ChangedPicture, ClassDrop

_MOST_PICTURES = 12
_MOST_CLASSES = 20
_SIGNIFICANCE = 0.05
Counts = npt.NDArray[np.int64]


def changed_answers(
    evaluator: ScheduleEvaluator, after: Predictions, images: ImageSet, *, subject: str
) -> ChangedAnswers | None:
    """Compare the answers in ``after``, (N, ...), with the uncompressed model's; None where outputs are no answers."""
    task, names = evaluator.dense.task, evaluator.class_names
    before = evaluator.baseline_outputs(images)
    found = task.answer_changes(before, after, images.labels)
    if found is None:
        return None
    order = torch.argsort(found.sure_before.masked_fill(~found.changed, -1.0), descending=True, stable=True)
    shown: list[int] = order[: min(_MOST_PICTURES, int(found.changed.sum()))].tolist()
    worse, better, totals = (counts.cpu().numpy() for counts in (found.worse, found.better, found.totals))
    drops = class_drops(
        worse, better, totals, lambda index: task.output_name(index, names), by_labels=images.labels is not None
    )
    return ChangedAnswers(
        subject=subject,
        num_changed=int(found.changed.sum()),
        num_images=len(images),
        by_labels=images.labels is not None,
        drop=float((worse - better).sum() / max(1, totals.sum())),
        pictures=tuple(
            ChangedPicture(
                name=images.names[index],
                png=_thumbnail(images, index),
                label="" if images.labels is None else task.target_text(images.labels[index], names),
                before=task.output_text(before[index], names),
                after=task.output_text(after[index], names),
                sure_before=float(found.sure_before[index]),
                sure_after=float(found.sure_after[index]),
            )
            for index in shown
        ),
        classes=drops[:_MOST_CLASSES],
        num_classes=len(drops),
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


def _thumbnail(images: ImageSet, index: int) -> bytes:
    """Return one picture as the network sees it; nothing of images that are no pictures."""
    if not isinstance(images, PreparedImages):
        return b""
    picture = images.pixels[images.rows[index]]  # (C, H, W)
    colours = picture[:3] if len(picture) >= 3 else picture[:1].expand(3, -1, -1)
    return png_of(colours.permute(1, 2, 0).contiguous().numpy())
