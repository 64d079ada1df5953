"""Finished runs that were not measured here: imports of run files and of other tools' tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from senseapp.core.errors import InvalidFile
from senseapp.core.files import storage_errors
from senseapp.records.deployment import CHECKPOINT
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import ValidationResult
from senseapp.records.spec import RunSpec
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.leaderboard import headline
from senseapp.store.run_file import ReadRunFile, read_run_file
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import RunStore

_ORIGIN = "Imported from a run file; what is in it was measured elsewhere."


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedRun:
    """A run whose records were validated and rewritten, in a folder that will become the run's own.

    Attributes:
        title: of the run.
        spec: its settings.
        headline: its result in one sentence.
        num_measurements: number of measurements in its result.
    """

    title: str
    spec: RunSpec
    headline: str
    num_measurements: int


def unpack_run_file(path: Path, folder: Path, *, most_bytes: int) -> UnpackedRun:
    """Check a run file and write its content, at most ``most_bytes``, into an empty ``folder``.

    Raises:
        InvalidFile: it is no run file, damaged, too large, or has unexpected content.
        StorageFailed: the folder cannot be written to.
    """
    with path.open("rb") as stream:
        read = read_run_file(stream, most_bytes=most_bytes)
        sentence = _headline(read)
        _fill(RunFolder(folder), read)
    return UnpackedRun(
        title=read.head.title,
        spec=read.result.spec,
        headline=sentence,
        num_measurements=len(read.result.measurements),
    )


def keep_run(store: RunStore, run: UnpackedRun, folder: Path, *, owner: str) -> str:
    """Create a finished run from the content of ``folder``, which is empty afterwards, and return its id."""

    def move(own: RunFolder) -> None:
        with storage_errors("the run"):
            for path in folder.iterdir():
                path.rename(own.path / path.name)

    return keep_finished_run(store, run, move, owner=owner, origin=_ORIGIN)


def keep_finished_run(
    store: RunStore, run: UnpackedRun, fill: Callable[[RunFolder], None], *, owner: str, origin: str
) -> str:
    """Create a finished run whose files ``fill`` writes, and return its id; on failure nothing is kept."""
    return store.create_finished(
        run.spec,
        fill,
        owner=owner,
        title=run.title,
        num_measurements=run.num_measurements,
        headline=run.headline,
        origin=origin,
    ).run_id


def _headline(read: ReadRunFile) -> str:
    try:
        return headline(read.result)
    except (ArithmeticError, ValueError, LookupError) as error:  # figures that no run of ours has
        raise InvalidFile(
            "The figures in this run file make no sense. Choose a file that Download run wrote."
        ) from error


def _fill(folder: RunFolder, read: ReadRunFile) -> None:
    for name, record in read.records.items():
        if isinstance(record, ValidationResult):
            record = replace(record, files=_files(read.weights, _key(name)))
        if isinstance(record, Recommendation) and (proof := RecommendationTask(run_id="").proof(record)):
            assert record.validation is not None
            files = _files(read.weights, proof.key)
            record = replace(record, validation=replace(record.validation, files=files))
        folder.save(_key(name), record)
    for name in read.weights:
        _keep_weights(folder, name, read)
    folder.save_result(read.result)


def _files(weights: Mapping[str, int], key: str) -> dict[str, int]:
    """Return the sizes of the files in the run file; others stay on the server that made them."""
    sizes = [count for name, count in weights.items() if _key(name) == key]
    return {CHECKPOINT.suffix: sizes[0]} if sizes else {}


def _keep_weights(folder: RunFolder, name: str, read: ReadRunFile) -> None:
    path = folder.compressed_model(_key(name))
    with storage_errors(path.name), path.open("xb") as stream:
        stream.writelines(read.chunks(name))
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as weights:
            weights.keys()
    except (SafetensorError, OSError) as error:
        raise InvalidFile(
            f"{path.name} is no safetensors file ({error}). Choose a file that Download run wrote."
        ) from error


def _key(name: str) -> str:
    """Return the key in a member's name, which was matched against hexadecimal digits before."""
    return name.split(".")[0].rsplit("-", 1)[1]
