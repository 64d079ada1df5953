"""Predictions for single images: those that a compressed model changes, losses by class, those of a delivered file.

Intervals of classes are those of paired shares (right and wrong answers) or of a share (answers that change), each with
confidence 1 − 0.05 / K for K classes (Bonferroni), so that all of them hold together with 95 %: a class whose interval
excludes the mean drop is not one of many looked at that stands out by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from senseapp.data.images import ImageSet, PreparedImages
from senseapp.data.pictures import png_of
from senseapp.metrics.base import SIGNIFICANCE, AnswerDrop
from senseapp.metrics.intervals import discordant_interval, proportion_interval
from senseapp.metrics.predictions import Predictions
from senseapp.records.answers import UNKNOWN, ChangedAnswers, ChangedPicture, ClassDrop, FileAnswers
from senseapp.tasks import Task

_MOST_PICTURES = 12  # stored with a proof, each with its thumbnail
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
    order = torch.argsort(found.damage.masked_fill(~found.changed, -1.0), descending=True, stable=True)
    shown: list[int] = order[: min(_MOST_PICTURES, int(found.changed.sum()))].tolist()
    drops_of: Callable[[float], Sequence[AnswerDrop]] = found.class_drops
    if found.counts is not None:
        worse, better, totals = (counts.cpu().numpy() for counts in found.counts)
        drops_of = partial(counted_drops, worse, better, totals, by_labels=images.labels is not None)
        drop = float((worse - better).sum() / max(1, totals.sum()))
    else:
        parts = [each.drop for each in drops_of(1 - SIGNIFICANCE)]
        drop = sum(parts) / max(1, len(parts))
    drops = class_drops(drops_of, drop, lambda index: task.output_name(index, names))
    return ChangedAnswers(
        subject=subject,
        num_changed=int(found.changed.sum()),
        num_images=len(images),
        by_labels=images.labels is not None,
        drop=drop,
        said=found.said,
        measure=found.measure,
        legend=task.legend([each[index] for each in (before, after) for index in shown], names),
        pictures=tuple(
            ChangedPicture(
                name=images.names[index],
                png=_thumbnail(images, index),
                label="" if images.labels is None else task.target_text(images.labels[index], names),
                before=task.output_text(before[index], names),
                after=task.output_text(after[index], names),
                sure_before=float(found.sure[0][index]) if found.sure else 0.0,
                sure_after=float(found.sure[1][index]) if found.sure else 0.0,
                caption=found.captions[index] if found.captions else "",
                drawn=_drawn(task, images, index, before[index], after[index]),
            )
            for index in shown
        ),
        classes=drops[:20],  # that lose most, stored with a proof; the number of all stands beside them
        num_classes=len(drops),
    )


def counted_drops(
    worse: Counts, better: Counts, totals: Counts, confidence: float, *, by_labels: bool
) -> list[AnswerDrop]:
    """Return what each class with images loses; counts are by class, (K,)."""
    found = []
    for index in np.flatnonzero(totals).tolist():
        lost, won, count = int(worse[index]), int(better[index]), int(totals[index])
        if by_labels:
            low, high = discordant_interval(lost, won, count, confidence)
        else:
            low, high = proportion_interval(lost, count, confidence)
        found.append(AnswerDrop(index=index, num_images=count, drop=(lost - won) / count, low=low, high=high))
    return found


def class_drops(
    drops_of: Callable[[float], Sequence[AnswerDrop]], mean: float, named: Callable[[int], str]
) -> tuple[ClassDrop, ...]:
    """Return what classes lose, the worst first, with intervals that hold together."""
    count = max(1, len(drops_of(1 - SIGNIFICANCE)))
    drops = (
        ClassDrop(
            name=named(each.index),
            num_images=each.num_images,
            drop=each.drop,
            low=each.low,
            high=each.high,
            stands_out=not each.low <= mean <= each.high,
        )
        for each in drops_of(1 - SIGNIFICANCE / count)
    )
    return tuple(sorted(drops, key=lambda each: -each.drop))


def _colours(images: ImageSet, index: int) -> npt.NDArray[np.uint8] | None:
    """Return one picture as the network sees it, RGB (H, W, 3); None for images that are no pictures."""
    if not isinstance(images, PreparedImages):
        return None
    picture = images.pixels[images.rows[index]]  # (C, H, W)
    colours = picture[:3] if len(picture) >= 3 else picture[:1].expand(3, -1, -1)
    found: npt.NDArray[np.uint8] = colours.permute(1, 2, 0).contiguous().numpy()
    return found


def _thumbnail(images: ImageSet, index: int) -> bytes:
    picture = _colours(images, index)
    return b"" if picture is None else png_of(picture)


def _drawn(task: Task, images: ImageSet, index: int, before: Any, after: Any) -> tuple[tuple[str, bytes], ...]:
    """Return the picture with its label, and with what each model answers, drawn in it, where the task can."""
    picture = _colours(images, index)
    if picture is None:
        return ()
    made = [("original", task.drawn(picture, before)), ("compressed", task.drawn(picture, after))]
    if images.labels is not None:
        made.append(("label", task.drawn_target(picture, images.labels[index])))
    return tuple((title, png_of(each)) for title, each in made if each is not None)


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
    return tuple(round(share, 3) for share in shares.tolist())
