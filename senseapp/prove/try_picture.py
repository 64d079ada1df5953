"""Predictions of the original network and of delivered files for one uploaded picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from senseapp.core.files import storage_errors
from senseapp.data.images import effective_preprocessing
from senseapp.data.pictures import png_of, prepared_picture, preview
from senseapp.metrics.predictions import Predictions
from senseapp.networks.sources.load import load_model
from senseapp.records.answers import ClassShare, PictureAnswer, PictureAnswers
from senseapp.records.spec import RunSpec
from senseapp.runtimes.base import runtime_for
from senseapp.tasks import Task, task_named


def picture_answers(spec: RunSpec, picture: Path, files: Sequence[tuple[str, Path, str]]) -> PictureAnswers:
    """Run the original network in PyTorch and each of ``files`` in its runtime on one picture.

    The picture is prepared as the images of the run were. Class names are those that the files carry.

    Args:
        spec: of the run, with its preparation as it was chosen.
        picture: a file, read in a process of its own.
        files: of the run: the name, the place and the runtime of each.

    Raises:
        InvalidDataset: the file is no picture that can be used.
        InvalidInput: the model cannot be loaded any more.
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
        outputs[name] = task.predictions(network.run(wanted))[:1]
    _, height, width = preprocessing.input_shape
    shown = preview(images, preprocessing, count=1).pictures[0]
    return PictureAnswers(
        png=png_of(shown),
        input_size=(width, height),
        original=_answer(task, original, names, shown),
        files=tuple((name, _answer(task, output, names, shown)) for name, output in outputs.items()),
        notes=images.notes,
    )


def _answer(task: Task, output: Predictions, names: Sequence[str], picture: NDArray[np.uint8]) -> PictureAnswer:
    """Return what a network answers to one image."""
    probabilities = task.probabilities(output)
    shares: tuple[ClassShare, ...] = ()
    if probabilities is not None:
        # most probable classes, as top-5 accuracy counts
        best, indices = probabilities[0].topk(min(5, probabilities.shape[1]))
        shares = tuple(
            ClassShare(name=task.output_name(index, names), share=share)
            for index, share in zip(indices.tolist(), best.tolist(), strict=True)
        )
    drawn = task.drawn(picture, output[0])
    return PictureAnswer(
        text=task.output_text(output[0], names), shares=shares, drawn=b"" if drawn is None else png_of(drawn)
    )
