"""Answers to images: which a compressed model changes, which classes pay for it, and what a delivered file answers.

Intervals of classes are Tango's (paired right and wrong answers) or mid-P (answers that change), each with confidence
1 − 0.05 / K for K classes (Bonferroni), so that all of them hold together with 95 %: a class whose interval excludes
the mean drop is not one of many looked at that stands out by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from senseapp.data.images import ImageSet, PreparedImages
from senseapp.data.pictures import png_of
from senseapp.metrics.intervals import discordant_interval, proportion_interval
from senseapp.metrics.predictions import Predictions
from senseapp.records.answers import UNKNOWN, ChangedAnswers, ChangedPicture, ClassDrop, FileAnswers
from senseapp.tasks import Task

_MOST_PICTURES = 12
_MOST_CLASSES = 20
_SIGNIFICANCE = 0.05
_DIGITS = 3  # of a probability
Counts = npt.NDArray[np.int64]


def changed_answers(
    before: Predictions, after: Predictions, images: ImageSet, *, task: Task, names: Sequence[str], subject: str
) -> ChangedAnswers | None:
    """Compare the answers in two outputs for ``images``, (N, ...); None where the task's outputs are no answers.

    Args:
        before: of the uncompressed model.
        after: of the compressed one.
        images: with labels, if any.
        task: what outputs and labels mean.
        names: of the outputs, as far as they are known.
        subject: what was compressed, as people read it.
    """
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


def file_answers(
    before: Predictions, after: Predictions, images: ImageSet, *, task: Task, names: Sequence[str]
) -> FileAnswers | None:
    """Return the answers in two outputs for ``images``, (N, ...); None where the task's outputs are no answers.

    Args:
        before: of the original network.
        after: of the file.
        images: with labels, if any.
        task: what outputs and labels mean.
        names: of the outputs, as far as they are known.
    """
    answers = [task.answered(output) for output in (before, after)]
    sure = [task.answer_shares(output) for output in (before, after)]
    if answers[0] is None or answers[1] is None or sure[0] is None or sure[1] is None:
        return None
    texts = _Texts(task, names)
    return FileAnswers(
        images=tuple(images.names),
        labels=() if images.labels is None else tuple(map(texts.place, task.labelled(images.labels))),
        original=tuple(map(texts.place, answers[0])),
        file=tuple(map(texts.place, answers[1])),
        sure_original=_rounded(sure[0]),
        sure_file=_rounded(sure[1]),
        texts=tuple(texts.known),
    )


class _Texts:
    """The texts of answers, each once; outputs whose names are alike get their number."""

    def __init__(self, task: Task, names: Sequence[str]) -> None:
        self._task = task
        self._names = names
        self._counts = Counter(task.output_name(index, names) for index in range(len(names)))
        self.known: dict[str, int] = {}

    def place(self, outputs: Sequence[int] | None) -> int:
        """Return the place of the text of an answer that names these outputs."""
        if outputs is None:
            return UNKNOWN
        text = ", ".join(map(self._name, outputs)) or f"no {self._task.label_words[0]}"
        return self.known.setdefault(text, len(self.known))

    def _name(self, index: int) -> str:
        name = self._task.output_name(index, self._names)
        return f"{name} ({index})" if self._counts[name] > 1 else name


def _rounded(shares: Tensor) -> tuple[float, ...]:
    return tuple(round(share, _DIGITS) for share in shares.tolist())
