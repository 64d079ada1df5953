"""Work on uploaded files and finished runs for pages, done by a worker process: see :class:`WorkerRequest`.

A foreign file is opened, parsed and examined there, never in the server: one that keeps a library busy indefinitely, or
exhausts the memory, ends only that process, and its user gets one sentence.
"""

from __future__ import annotations

from pathlib import Path

from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.errors import InvalidFile
from senseapp.core.process import PROCESS_CACHE, without_collection
from senseapp.descriptions import CompressionConfig
from senseapp.records.answers import PictureAnswers
from senseapp.records.deployment import LayerTimes
from senseapp.records.inputs import ImageSurvey
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup, ModelProfile
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.leaderboard import headline
from senseapp.store.distiller import read_distiller_csv
from senseapp.store.layer_times import read_layer_times
from senseapp.store.run_file import read_run_file
from senseapp.store.run_folder import RunFolder
from senseapp.tasks import task_named


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


def read_table(content: bytes, title: str, granularity: SparsityGranularity, profile: ModelProfile | None) -> RunResult:
    """Read another tool's sensitivity table."""
    return read_distiller_csv(content, title=title, granularity=granularity, profile=profile)


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
    folder: Path,
    budget: ResourceBudget,
    method: str,
    limits: Limits,
    gamma: float,
    groups: tuple[CoupledGroup, ...],
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
