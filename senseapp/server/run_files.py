"""Finished runs that were not measured here: imports of run files and of other tools' tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from senseapp.core.errors import InvalidFile
from senseapp.core.files import storage_errors
from senseapp.records.measurement import RunResult
from senseapp.server.leaderboard import headline
from senseapp.store import run_file
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import RunStore

_ORIGIN = "Imported from a run file; what is in it was measured elsewhere."


def unpack_run_file(path: Path, folder: Path, *, most_bytes: int) -> str:
    """Check a run file, and write its content, at most ``most_bytes``, into an empty ``folder``; return its title.

    Raises:
        InvalidFile: it is no run file, damaged, too large, or has unexpected content.
        StorageFailed: the folder cannot be written to.
    """
    with path.open("rb") as stream:
        title = run_file.unpack_run_file(stream, RunFolder(folder), most_bytes=most_bytes)
    try:
        headline(RunFolder(folder).load_result())
    except (ArithmeticError, ValueError, LookupError) as error:  # figures that no run of ours has
        raise InvalidFile(
            "The figures in this run file make no sense. Choose a file that Download run wrote."
        ) from error
    return title


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
