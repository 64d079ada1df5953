"""Report on a set of images and the model's predictions on them, before any measurement."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from senseapp.metrics import METRICS
from senseapp.records.inputs import PreviewReport, SeenPicture
from senseapp.records.spec import RunSpec
from senseapp.server.session import load_engine
from senseapp.tasks import Task, task_named

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.data.images import ImageSet
    from senseapp.metrics.predictions import Predictions
    from senseapp.networks.loaded import LoadedModel


_SHOWN = 12  # pictures
_MOST_SCORED = 256  # images, and
_SCORING_SECONDS = 8.0  # for the figure beside them: a page waits
_BATCH = 32  # images of a forward pass


def sample_zip() -> bytes:
    """Return the demo's pictures in class folders, as a zip file: an example of valid images."""
    load_engine()
    from senseapp.data.load import write_demo_zip  # torch loads on first use, not when the app starts

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.zip"
        write_demo_zip(path)
        return path.read_bytes()


def preview_images(spec: RunSpec, *, num_images: int | None, data_roots: tuple[Path, ...] = ()) -> PreviewReport:
    """Load the model and some images of ``spec``, and run the model on them; takes seconds.

    If their preprocessing is ``auto``, it is chosen first and used for the report. ``num_images`` is None if unknown;
    without ``data_roots`` images may be anywhere.
    """
    load_engine()
    from senseapp.data.images import PreparedImages, follow  # torch loads on first use, not when the app starts
    from senseapp.data.load import images_for
    from senseapp.measure.preparation_search import choose_class_order, choose_preparation
    from senseapp.networks.sources.load import load_model

    choice = None
    if spec.data.preparation == "auto":
        choice = choose_preparation(spec, data_roots=data_roots)
        spec = choice.spec
    model, task = load_model(spec.model), task_named(spec.model.task)
    load = partial(
        images_for,
        model,
        task=task,
        num_samples=_MOST_SCORED if num_images is not None and num_images > 2 * _MOST_SCORED else None,
        seed=spec.sensitivity.seed,
        data_roots=data_roots,
    )
    images = load(spec.data)
    if choice is None:
        by_order = choose_class_order(spec, model, images, data_roots=data_roots)
        if by_order.chosen is not None:
            choice, spec = by_order, by_order.spec
            images = images if follow(images, spec.data.class_map) else load(spec.data)
    scored, score = _score(task, model, images)
    return PreviewReport(
        pictures=_seen(spec, task, model, images),
        num_scored=scored,
        score=score,
        warning="" if score is None else task.preview_warning(score, scored, task.outputs_of_head(model.num_classes)),
        notes=images.notes,
        choice=choice,
        num_marked=images.num_marked if isinstance(images, PreparedImages) else 0,
    )


def _seen(spec: RunSpec, task: Task, model: LoadedModel, images: ImageSet) -> tuple[SeenPicture, ...]:
    from senseapp.data.images import effective_preprocessing
    from senseapp.data.pictures import png_of, preview

    chosen = preview(images, effective_preprocessing(spec.data, model.preprocessing), count=_SHOWN)
    outputs = _outputs(task, model, images.subset(chosen.indices).batch(0, len(chosen.indices)))
    names = model.class_names or images.class_names
    return tuple(
        SeenPicture(
            name=images.names[index],
            png=png_of(picture),
            label="" if images.labels is None else task.target_text(images.labels[index], names),
            prediction=task.output_text(output, names),
            drawn=tuple(
                png_of(drawn)
                for drawn in (
                    task.drawn(picture, output),
                    None if images.labels is None else task.drawn_target(picture, images.labels[index]),
                )
                if drawn is not None
            ),
        )
        for index, picture, output in zip(chosen.indices, chosen.pictures, outputs, strict=True)
    )


def _score(task: Task, model: LoadedModel, images: ImageSet) -> tuple[int, float | None]:
    """Return how many images were scored, in random order within the time limit, and the task's displayed metric."""
    if images.labels is None or not task.shown_metric:
        return 0, None
    import torch

    from senseapp.data.images import draw

    metric = METRICS[task.shown_metric]
    chosen = draw(images, min(_MOST_SCORED, len(images)), seed=0)
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0)).tolist()
    end, scored = time.monotonic() + _SCORING_SECONDS, 0
    moments: tuple[float, ...] = ()
    while scored < len(order) and time.monotonic() < end:
        batch = chosen.subset(order[scored : scored + _BATCH])
        output = _outputs(task, model, batch.batch(0, len(batch)))
        found = metric.moments(output, output, batch.labels)
        moments = metric.merge(moments, found) if scored else found
        scored += len(batch)
    return scored, metric.estimate(moments)[0]


def _outputs(task: Task, model: LoadedModel, batch: Tensor) -> Predictions:
    import torch

    with torch.inference_mode():
        return task.predictions(model.module(batch))
