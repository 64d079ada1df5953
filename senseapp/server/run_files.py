"""Finished runs that were not measured here: imports of run files and of other tools' tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from senseapp.core.errors import InvalidFile
from senseapp.core.files import storage_errors
from senseapp.records.deployment import CHECKPOINT
from senseapp.records.measurement import RunResult
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import ValidationResult
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.leaderboard import headline
from senseapp.store.run_file import ReadRunFile, read_run_file
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import RunStore

_ORIGIN = "Imported from a run file; what is in it was measured elsewhere."


def unpack_run_file(path: Path, folder: Path, *, most_bytes: int) -> str:
    """Check a run file, write its content, at most ``most_bytes``, into an empty ``folder``, and return its title.

    Raises:
        InvalidFile: it is no run file, damaged, too large, or has unexpected content.
        StorageFailed: the folder cannot be written to.
    """
    with path.open("rb") as stream:
        read = read_run_file(stream, most_bytes=most_bytes)
        _require_sense(read.result)
        _fill(RunFolder(folder), read)
    return read.head.title


def keep_run(store: RunStore, folder: Path, *, owner: str, title: str) -> str:
    """Create a finished run from the content of ``folder``, which is empty afterwards, and return its id."""

    def move(own: RunFolder) -> None:
        with storage_errors("the run"):
            for path in folder.iterdir():
                path.rename(own.path / path.name)

    result = RunFolder(folder).load_result()
    return keep_finished_run(store, result, move, owner=owner, title=title, origin=_ORIGIN)


def keep_finished_run(
    store: RunStore, result: RunResult, fill: Callable[[RunFolder], None], *, owner: str, title: str, origin: str
) -> str:
    """Create a finished run whose files ``fill`` writes, and return its id; on failure nothing is kept."""
    return store.create_finished(
        result.spec,
        fill,
        owner=owner,
        title=title,
        num_measurements=len(result.measurements),
        headline=headline(result),
        origin=origin,
    ).run_id


def _require_sense(result: RunResult) -> None:
    try:
        headline(result)
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
