"""Predictions for single images: those that a compressed model changes, losses by class, those of delivered files.

Intervals of classes are those of paired shares (right and wrong answers) or of a share (answers that change), each with
confidence 1 − 0.05 / K for K classes (Bonferroni), so that all of them hold together with 95 %: a class whose interval
excludes the mean drop is not one of many looked at that stands out by chance.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from senseapp.core.files import storage_errors
from senseapp.data.images import ImageSet, PreparedImages, effective_preprocessing
from senseapp.data.pictures import png_of, prepared_picture, preview
from senseapp.metrics.base import SIGNIFICANCE, AnswerDrop
from senseapp.metrics.intervals import discordant_interval, proportion_interval
from senseapp.metrics.predictions import Predictions
from senseapp.networks.sources.load import load_model
from senseapp.prove.judge import predictions
from senseapp.records.answers import (
    ChangedAnswers,
    ChangedPicture,
    ClassDrop,
    FileAnswers,
    LabelledAnswer,
    PictureAnswer,
    PictureAnswers,
)
from senseapp.records.spec import RunSpec
from senseapp.runtimes.base import runtime_for
from senseapp.tasks import Task, task_named

_MOST_PICTURES = 12  # stored with a proof, each with its thumbnail
Counts = npt.NDArray[np.int64]


def changed_answers(
    before: Predictions, after: Predictions, images: ImageSet, *, task: Task, names: Sequence[str], subject: str
) -> ChangedAnswers | None:
    """Compare the answers in two outputs for ``images``, (N, ...); None where the task's outputs are no answers.

    ``before`` is of the uncompressed model, ``after`` of the compressed one; ``names`` are those of the outputs, as far
    as they are known, and ``subject`` is what was compressed, as people read it.
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
    pictures = []
    for index in shown:
        png, drawn = _drawn(task, images, index, before[index], after[index])
        picture = ChangedPicture(
            name=images.names[index],
            png=png,
            label="" if images.labels is None else task.target_text(images.labels[index], names),
            before=task.output_text(before[index], names),
            after=task.output_text(after[index], names),
            sure_before=float(found.sure[0][index]) if found.sure else 0.0,
            sure_after=float(found.sure[1][index]) if found.sure else 0.0,
            caption=found.captions[index] if found.captions else "",
            drawn=drawn,
        )
        pictures.append(picture)
    return ChangedAnswers(
        subject=subject,
        num_changed=int(found.changed.sum()),
        num_images=len(images),
        by_labels=images.labels is not None,
        drop=drop,
        said=found.said,
        measure=found.measure,
        legend=task.legend([each[index] for each in (before, after) for index in shown], names),
        pictures=tuple(pictures),
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


def _drawn(
    task: Task, images: ImageSet, index: int, before: Any, after: Any
) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
    """Return a picture as the network sees it, answers and label drawn in it; nothing for what cannot be drawn."""
    if not isinstance(images, PreparedImages):
        return b"", ()
    picture = preview(images.subset([index]), images.preprocessing, count=1).pictures[0]
    made = [("original", task.drawn(picture, before)), ("compressed", task.drawn(picture, after))]
    if images.labels is not None:
        made.append(("label", task.drawn_target(picture, images.labels[index])))
    return png_of(picture), tuple((title, png_of(each)) for title, each in made if each is not None)


def file_answers(
    before: Predictions, after: Predictions, images: ImageSet, *, task: Task, names: Sequence[str]
) -> FileAnswers | None:
    """Return the answers in two outputs for ``images``, (N, ...); None where the task's outputs are no answers.

    ``before`` is of the original network, ``after`` of the file; ``names`` are those of the outputs, as far as they are
    known.
    """
    answers = [task.answered(output) for output in (before, after)]
    sure = [task.answer_shares(output) for output in (before, after)]
    if answers[0] is None or answers[1] is None or sure[0] is None or sure[1] is None:
        return None
    alike = Counter(task.output_name(index, names) for index in range(len(names)))

    def named(index: int) -> str:
        name = task.output_name(index, names)
        return f"{name} ({index})" if alike[name] > 1 else name  # outputs whose names are alike get their number

    def text(outputs: Sequence[int]) -> str:
        return ", ".join(map(named, outputs)) or f"no {task.label_words[0]}"

    known = [None] * len(images) if images.labels is None else task.labelled(images.labels)
    labels = [None if outputs is None else text(outputs) for outputs in known]
    original, file = (
        {
            name: LabelledAnswer(text=text(outputs), sure=round(share, 3), label=label)
            for name, outputs, share, label in zip(images.names, answered, shares.tolist(), labels, strict=True)
        }
        for answered, shares in ((answers[0], sure[0]), (answers[1], sure[1]))
    )
    return FileAnswers(original=original, file=file)


def picture_answers(spec: RunSpec, picture: Path, files: Sequence[tuple[str, Path, str]]) -> PictureAnswers:
    """Run the original network in PyTorch and each of ``files``, by name, place and runtime, on one picture.

    The picture, a file that is read in a process of its own, is prepared as the images of the run were. Class names are
    those that the files carry.

    Raises InvalidDataset if it is no picture that can be used, InvalidInput if the model cannot be loaded any more.
    """
    model, task = load_model(spec.model), task_named(spec.model.task)
    preprocessing = effective_preprocessing(spec.data, model.preprocessing)
    images = prepared_picture(picture, preprocessing, upright=spec.data.upright)
    batch = images.batch(0, 1)  # (1, C, H, W)
    with torch.inference_mode():
        original = task.predictions(model.module(batch))
    outputs: dict[str, Predictions] = {}
    names: Sequence[str] = model.class_names
    for name, path, runtime_name in files:
        with storage_errors(name):
            content = path.read_bytes()
        runtime = runtime_for(runtime_name, model.onnx)
        names = names or runtime.class_names(content)
        network = runtime.open(content)
        wanted = batch.expand(network.fixed_batch or 1, *batch.shape[1:])  # whatever batch the file takes
        outputs[name] = predictions(task, network, wanted)[:1]
    _, height, width = preprocessing.input_shape
    shown = preview(images, preprocessing, count=1).pictures[0]
    return PictureAnswers(
        png=png_of(shown),
        input_size=(width, height),
        original=_answer(task, original, names, shown),
        files={name: _answer(task, output, names, shown) for name, output in outputs.items()},
        notes=images.notes,
    )


def _answer(task: Task, output: Predictions, names: Sequence[str], picture: npt.NDArray[np.uint8]) -> PictureAnswer:
    """Return what a network answers to one image."""
    probabilities = task.probabilities(output)
    shares: tuple[tuple[str, float], ...] = ()
    if probabilities is not None:
        # most probable classes, as top-5 accuracy counts
        best, indices = probabilities[0].topk(min(5, probabilities.shape[1]))
        likeliest = [task.output_name(index, names) for index in indices.tolist()]
        shares = tuple(zip(likeliest, best.tolist(), strict=True))
    drawn = task.drawn(picture, output[0])
    return PictureAnswer(
        text=task.output_text(output[0], names), shares=shares, drawn=b"" if drawn is None else png_of(drawn)
    )
