"""Finished runs that were not measured here: from run files and from other tools' tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from senseapp.core.disk import storage_errors
from senseapp.core.errors import InvalidFile, SenseError
from senseapp.records.jobs import RunState
from senseapp.records.measurement import SensitivityResult
from senseapp.records.model_files import CHECKPOINT
from senseapp.records.schedule import ValidationResult
from senseapp.runs.leaderboard import headline as headline_of
from senseapp.store.run_file_reading import ReadRunFile
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import RunStore

_ORIGIN = "Imported from a run file; what is in it was measured elsewhere."


def keep_run_file(store: RunStore, read: ReadRunFile, *, owner: str) -> str:
    """Make a finished run of a file that was found sound, and return its id.

    Raises:
        InvalidFile: a compressed model in it is not one.
        StorageFailed: it cannot be stored.
    """
    sentence = _headline(read)
    return keep_finished_run(
        store,
        read.result,
        owner=owner,
        title=read.head.title,
        headline=sentence,
        origin=_ORIGIN,
        fill=lambda folder: _fill(folder, read),
    )


def keep_finished_run(
    store: RunStore,
    result: SensitivityResult,
    *,
    owner: str,
    title: str,
    headline: str,
    origin: str,
    fill: Callable[[RunFolder], None] = lambda folder: None,
) -> str:
    """Store a finished run and return its id; ``fill`` adds further files, and where it fails nothing is kept."""
    record = store.create(result.spec, owner=owner, title=title)
    try:
        folder = store.folder(record.run_id)
        fill(folder)
        folder.save_result(result)
        store.update(record.run_id, headline=headline, origin=origin)
        count = len(result.measurements)
        store.set_state(record.run_id, RunState.DONE, done=count, total=count)
    except SenseError:
        store.remove(record.run_id)
        raise
    store.update_size(record.run_id)
    return record.run_id


def _headline(read: ReadRunFile) -> str:
    try:
        return headline_of(read.result)
    except (ArithmeticError, ValueError, LookupError) as error:  # figures that no run of ours has
        raise InvalidFile(
            "The figures in this run file make no sense. Choose a file that Download run wrote."
        ) from error


def _fill(folder: RunFolder, read: ReadRunFile) -> None:
    for name, record in read.records.items():
        if isinstance(record, ValidationResult):
            record = replace(record, files=_files(read.weights, _key(name)))
        folder.save(_key(name), record)
    for name in read.weights:
        _keep_weights(folder, name, read)


def _files(weights: Mapping[str, int], key: str) -> dict[str, int]:
    """Return the sizes of the files that came along; the others stay where they were made."""
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
    """Return the key in the name of a member, which was matched against hexadecimal digits before."""
    return name.split(".")[0].rsplit("-", 1)[1]
