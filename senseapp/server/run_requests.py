"""Work on uploaded files, images and finished runs for pages, done by a worker process: see :class:`WorkerRequest`.

A foreign file is opened, parsed and examined there, never in the server: one that keeps a library busy indefinitely, or
exhausts the memory, ends only that process, and its user gets one sentence.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from senseapp.core.errors import InvalidFile
from senseapp.core.process import PROCESS_CACHE, without_collection
from senseapp.descriptions import CompressionConfig
from senseapp.metrics import METRICS
from senseapp.records.answers import PictureAnswers
from senseapp.records.deployment import LayerTimes
from senseapp.records.headline import headline
from senseapp.records.inputs import ImageSurvey, PreparationChoice, PreviewReport, SeenPicture
from senseapp.records.profile import CoupledGroup, ModelProfile
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.machine import load_engine
from senseapp.store.layer_times import read_layer_times
from senseapp.store.run_file import read_run_file
from senseapp.store.run_folder import RunFolder
from senseapp.tasks import Task, task_named

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.data.images import ImageSet
    from senseapp.metrics.predictions import Predictions
    from senseapp.networks.loaded import LoadedModel


def survey(
    data: DataSpec, task: str, num_classes: int, class_names: tuple[str, ...], data_roots: tuple[Path, ...]
) -> ImageSurvey:
    """List the content of a folder, an archive or an image set, and decode a picture."""
    from senseapp.data.pictures import survey_images  # torch loads on first use

    return survey_images(
        data, num_classes=num_classes, task=task_named(task), class_names=class_names, data_roots=data_roots
    )


def unpack_run_file(path: Path, folder: Path, most_bytes: int) -> str:
    """Check a run file, and write its content, at most ``most_bytes``, into an empty ``folder``; return its title."""
    unpacked = RunFolder(folder)
    with path.open("rb") as stream:
        title = read_run_file(stream, unpacked, most_bytes=most_bytes)
    try:
        headline(unpacked.load_result())
    except (ArithmeticError, ValueError, LookupError) as error:  # figures that no run of ours has
        raise InvalidFile(
            "The figures in this run file make no sense. Choose a file that Download run wrote."
        ) from error
    return title


def read_schedule_file(content: bytes, profile: ModelProfile) -> Schedule:
    """Read a schedule file."""
    from senseapp.formats.plain import read_schedule  # loads yaml, which other requests do not need

    return read_schedule(content, profile)


def read_times(
    content: bytes, name: str, profile: ModelProfile, compression: CompressionConfig, level: float | None
) -> LayerTimes:
    """Read times of layers from another program's file; ``level`` is that of the network that was profiled."""
    return read_layer_times(content, profile, compression.scale, name=name, level=level)


def solve_schedule(
    folder: Path, budget: ResourceBudget, method: str, limits: Limits, gamma: float, groups: tuple[CoupledGroup, ...]
) -> Schedule:
    """Choose the levels of a run; its results stay in memory for the next request, as reading takes longest."""
    from senseapp.solve.trade_off import schedule_for  # loads scipy's solvers

    key = "result", folder
    result = PROCESS_CACHE.take(key) or RunFolder(folder).load_result()
    try:
        with without_collection():
            return schedule_for(result, budget, method=method, limits=limits, gamma=gamma, groups=groups)
    finally:
        PROCESS_CACHE.leave(key, result)


def find_couplings(folder: Path, model: ModelSpec) -> tuple[CoupledGroup, ...]:
    """Return the layers of a run that pruning shrinks together."""
    from senseapp.networks.sources.load import load_model
    from senseapp.prove.evaluator import couplings_of

    return couplings_of(load_model(model).module, RunFolder(folder).load_result())


def show_pictures(spec: RunSpec, names: tuple[str, ...], data_roots: tuple[Path, ...]) -> dict[str, bytes]:
    """Return pictures of a run as its network gets them, as PNG, by name; none for noise."""
    from senseapp.data.images import effective_preprocessing  # torch loads on first use
    from senseapp.data.load import images_for
    from senseapp.data.pictures import png_of, preview
    from senseapp.networks.sources.load import load_model

    model = load_model(spec.model)
    task = task_named(spec.model.task)
    images = images_for(model, spec.data, task=task, with_labels=False, names=names, data_roots=data_roots)
    if images.indicative:  # noise
        return {}
    shown = preview(images, effective_preprocessing(spec.data, model.preprocessing), count=len(images))
    return {images.names[index]: png_of(picture) for index, picture in zip(shown.indices, shown.pictures, strict=True)}


def try_picture(spec: RunSpec, picture: Path, files: tuple[tuple[str, Path, str], ...]) -> PictureAnswers:
    """Run the original network of a run and its ``files`` (name, path, runtime) on an uploaded picture."""
    from senseapp.prove.answers import picture_answers  # torch loads on first use

    return picture_answers(spec, picture, files)


_SHOWN = 4  # pictures
_MOST_SCORED = 256  # images, and


def sample_zip() -> bytes:
    """Return the demo's pictures in class folders, as a zip file: an example of valid images."""
    load_engine()  # a page calls this in the server's own process
    from senseapp.data.load import write_demo_zip  # torch loads on first use, not when the app starts

    write_demo_zip(file := io.BytesIO())
    return file.getvalue()


def preview_images(spec: RunSpec, *, num_images: int | None, data_roots: tuple[Path, ...] = ()) -> PreviewReport:
    """Load the model and some images of ``spec``, and run the model on them; takes seconds.

    If their preprocessing is ``auto``, it is chosen first and used for the report; where a person has to choose, the
    report shows what there is to choose from. ``num_images`` is None if unknown; without ``data_roots`` images may be
    anywhere.
    """
    from senseapp.data.images import follow  # torch loads on first use, not when the app starts
    from senseapp.data.load import images_for
    from senseapp.measure.preparation_search import choose_class_order, choose_preparation
    from senseapp.networks.sources.load import load_model

    choice, task = None, task_named(spec.model.task)
    if spec.data.preparation == "auto":
        choice = choose_preparation(spec, data_roots=data_roots)
        spec = choice.spec
    model = load_model(spec.model)
    load = partial(images_for, task=task, seed=spec.sensitivity.seed, data_roots=data_roots)
    if choice is not None and choice.question:
        return _question(choice, task, model, load)
    few = _MOST_SCORED if num_images is not None and num_images > 2 * _MOST_SCORED else None
    images = load(model, spec.data, num_samples=few)
    if choice is None:
        by_order = choose_class_order(spec, model, images, data_roots=data_roots)
        if by_order.chosen is not None:
            choice, spec = by_order, by_order.spec
            images = images if follow(images, spec.data.class_map) else load(model, spec.data, num_samples=few)
    scored, score = _score(task, model, images)
    outputs = task.outputs_of_head(model.num_classes)
    return replace(
        _understood(spec, task, model, images),
        pictures=_seen(spec.data, task, model, images),
        num_scored=scored,
        score=score,
        warning="" if score is None else task.baseline_warning({task.shown_metric: score}, scored, outputs),
        choice=choice,
    )


def _understood(spec: RunSpec, task: Task, model: LoadedModel, images: ImageSet) -> PreviewReport:
    """Return a report without pictures and figures: how images and outputs are read, and the other ways."""
    from senseapp.data.images import PreparedImages
    from senseapp.measure.preparation_candidates import usual_ranges
    from senseapp.measure.readings import reading_of

    reading = reading_of(spec, model, images)
    return PreviewReport(
        notes=images.notes,
        num_marked=images.num_marked if isinstance(images, PreparedImages) else 0,
        reading=reading,
        layouts=_layouts(task, model, images),
        ranges=tuple((words, *values) for values, words in usual_ranges(reading.input_shape[0]).items()),
    )


def _layouts(task: Task, model: LoadedModel, images: ImageSet) -> tuple[tuple[str, str], ...]:
    """Return key and words of the layouts that outputs for these images may have; empty where there is one way."""
    import torch

    from senseapp.networks.onnx.modules import OnnxNetwork

    if not model.readers or not isinstance(model.module, OnnxNetwork):
        return ()
    with torch.inference_mode():
        raw = model.module.unread(images.batch(0, min(_SHOWN, len(images))))
    readers = (*model.readers, *task.readers(raw, model.preprocessing.input_shape[1:], every=True))
    return tuple({reader.key: reader.words for reader in readers}.items())


def _question(
    choice: PreparationChoice, task: Task, model: LoadedModel, load: Callable[..., ImageSet]
) -> PreviewReport:
    """Return a report with the same few pictures in each of the first readings that a person has to choose from."""
    asked = []
    for trial in choice.trials[:4]:
        read = _read_as(trial.spec.model, choice.spec.model, model, task)
        images = load(read, trial.spec.data, num_samples=_SHOWN)
        asked.append((trial, _seen(trial.spec.data, task, read, images)))
    return replace(_understood(choice.spec, task, model, images), choice=choice, asked=tuple(asked))


def _read_as(wanted: ModelSpec, known: ModelSpec, model: LoadedModel, task: Task) -> LoadedModel:
    """Return the network of ``wanted``: ``model``, that of ``known``, where these differ by no more than a layout."""
    from senseapp.networks.onnx.modules import OnnxNetwork
    from senseapp.networks.sources.load import load_model

    if replace(wanted, layout="") != replace(known, layout=""):
        return load_model(wanted)
    if not wanted.layout or not isinstance(model.module, OnnxNetwork):
        return model
    reader = model.module.reader = task.reader_of(wanted.layout)
    named = model.class_names if len(model.class_names) == reader.num_classes else ()
    width = reader.num_classes or model.num_classes
    return replace(model, num_classes=width, background=reader.background, class_names=named)


def _seen(data: DataSpec, task: Task, model: LoadedModel, images: ImageSet) -> tuple[SeenPicture, ...]:
    from senseapp.data.images import effective_preprocessing
    from senseapp.data.pictures import png_of, preview

    chosen = preview(images, effective_preprocessing(data, model.preprocessing), count=_SHOWN)
    outputs = _outputs(task, model, images.subset(chosen.indices).batch(0, len(chosen.indices)))
    names = model.class_names or images.class_names
    thumbnail = partial(png_of, most=240)  # pixels: boxes of small objects are to be seen
    return tuple(
        SeenPicture(
            name=images.names[index],
            png=thumbnail(picture),
            label="" if images.labels is None else task.target_text(images.labels[index], names),
            prediction=task.output_text(output, names),
            drawn=tuple(
                thumbnail(drawn)
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
    end, scored = time.monotonic() + 8.0, 0  # a page waits
    moments: tuple[float, ...] = ()
    while scored < len(order) and time.monotonic() < end:
        batch = chosen.subset(order[scored : scored + 32])
        output = _outputs(task, model, batch.batch(0, len(batch)))
        found = metric.moments(output, output, batch.labels)
        moments = metric.merge(moments, found) if scored else found
        scored += len(batch)
    return scored, metric.estimate(moments)[0]


def _outputs(task: Task, model: LoadedModel, batch: Tensor) -> Predictions:
    import torch

    with torch.inference_mode():
        return task.predictions(model.module(batch))
