"""All runs of one senseapp home: who owns them, where they stand, and the folder that holds their files."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
import uuid
from pathlib import Path

from senseapp.errors import InvalidFile, InvalidSpec, NotFound, StorageFailed
from senseapp.results import RunRecord, RunState
from senseapp.spec import RunSpec, dumps, loads
from senseapp.store.database import Database
from senseapp.store.disk import storage_errors
from senseapp.store.run_folder import RunFolder

__all__ = ["INTERRUPTED_SENTENCE", "RunStore"]

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_TITLE_LIMIT = 200
INTERRUPTED_SENTENCE = (
    "senseapp stopped before this run was finished. Everything measured so far is kept; press Resume to go on."
)


class RunStore:
    """Runs in a database and their files in folders.

    A method with a ``viewer`` is for requests from outside: any text may come as ``run_id``, it is looked up and
    never made part of a path, and whoever may not see the run gets the same answer as if it did not exist.
    Methods without one are for the worker, which only knows ids that the store itself gave out.

    Raises:
        StorageFailed: from every method, where the disk or the database refuses.
    """

    def __init__(self, home: Path) -> None:
        self._runs = home / "runs"
        self._database = Database(home / "senseapp.sqlite3")
        with storage_errors(f"the folder {self._runs.name}"):
            self._runs.mkdir(exist_ok=True)

    def create(self, spec: RunSpec, *, owner: str, title: str = "") -> RunRecord:
        """Enter a new queued run and make its folder; the id cannot be guessed."""
        run_id = uuid.uuid4().hex
        now = time.time()
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO runs (run_id, owner, title, spec, state, created_seconds, updated_seconds)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (run_id, owner, _checked_title(title or spec.model.title), dumps(spec), RunState.QUEUED, now, now),
            )
        try:
            folder = RunFolder(self._runs / run_id)
            folder.make()  # after the row, so that recover() never takes it for a stray
            folder.claim(spec)
        except StorageFailed:
            self._forget(run_id)
            raise
        return self.record(run_id)

    def get(self, run_id: str, viewer: str) -> RunRecord:
        """Return a run that ``viewer`` owns or that is shared.

        Raises:
            NotFound: there is none, or it is somebody else's.
        """
        record = self.record(run_id)
        if record.owner != viewer and not record.shared:
            raise _not_found()
        return record

    def owned(self, run_id: str, viewer: str) -> RunRecord:
        """Return a run that ``viewer`` owns: the one check before a change.

        Raises:
            NotFound: there is none, or it is somebody else's, shared or not.
        """
        record = self.record(run_id)
        if record.owner != viewer:
            raise _not_found()
        return record

    def list(self, viewer: str) -> tuple[RunRecord, ...]:
        """Return the runs of ``viewer``, the newest first; shared runs of others open by their link only."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT * FROM runs WHERE owner = ? ORDER BY sequence DESC", (viewer,)).fetchall()
        return tuple(_record(row) for row in rows)

    def rename(self, run_id: str, viewer: str, title: str) -> None:
        """Change what people see.

        Raises:
            NotFound: there is no such run of ``viewer``.
            InvalidSpec: the title is empty or too long.
        """
        self.owned(run_id, viewer)
        self._set(run_id, title=_checked_title(title))

    def share(self, run_id: str, viewer: str, *, shared: bool) -> None:
        """Let anybody with the link read the run, or nobody else.

        Raises:
            NotFound: there is no such run of ``viewer``.
        """
        self.owned(run_id, viewer)
        self._set(run_id, shared=int(shared))

    def delete(self, run_id: str, viewer: str) -> None:
        """Remove a run and its files.

        Raises:
            NotFound: there is no such run of ``viewer``.
        """
        record = self.owned(run_id, viewer)
        self._forget(record.run_id)
        shutil.rmtree(self._runs / record.run_id, ignore_errors=True)  # recover() sweeps what is left

    def record(self, run_id: str) -> RunRecord:
        """Return a run whoever owns it.

        Raises:
            NotFound: there is none.
        """
        return _record(self._row(run_id))

    def progress(self, run_id: str) -> tuple[int, int]:
        """Return measurements stored at the last change of state, and planned (0 while unknown).

        Raises:
            NotFound: there is no such run.
        """
        row = self._row(run_id)
        return row["done"], row["total"]

    def folder(self, run_id: str) -> RunFolder:
        """Return the files of a run.

        Raises:
            NotFound: there is no such run.
        """
        return RunFolder(self._runs / self.record(run_id).run_id)

    def set_state(
        self, run_id: str, state: RunState, *, error: str = "", done: int | None = None, total: int | None = None
    ) -> None:
        """Move a run on; figures that are None stay.

        Raises:
            NotFound: there is no such run (any more).
        """
        counts = {"done": done, "total": total}
        self._set(
            run_id, state=state, error=error, **{key: value for key, value in counts.items() if value is not None}
        )

    def set_headline(self, run_id: str, headline: str) -> None:
        """Keep the result in one sentence.

        Raises:
            NotFound: there is no such run (any more).
        """
        self._set(run_id, headline=headline)

    def recover(self) -> tuple[str, ...]:
        """After a start: mark what a stopped server left behind as interrupted, and sweep files without a run.

        Returns:
            Ids of the runs that were interrupted, the oldest first.
        """
        folders = [path for path in self._runs.iterdir() if _RUN_ID.fullmatch(path.name)]  # before the rows are read
        unfinished = [state for state in RunState if not state.finished]
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT run_id FROM runs WHERE state IN (?, ?) ORDER BY sequence", unfinished
            ).fetchall()
            known = {row["run_id"] for row in connection.execute("SELECT run_id FROM runs")}
        interrupted = tuple(row["run_id"] for row in rows)
        for run_id in interrupted:
            self._interrupt(run_id)
        for path in folders:
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)
        return interrupted

    def _interrupt(self, run_id: str) -> None:
        try:
            done = self.folder(run_id).measurements.count()
        except InvalidFile as error:  # one damaged run must not keep the others from being served
            self.set_state(run_id, RunState.FAILED, error=str(error))
        else:
            self.set_state(run_id, RunState.INTERRUPTED, error=INTERRUPTED_SENTENCE, done=done)

    def _forget(self, run_id: str) -> None:
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))

    def _row(self, run_id: str) -> sqlite3.Row:
        if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
            raise _not_found()
        with self._database.reading() as connection:
            row: sqlite3.Row | None = connection.execute("SELECT * FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if row is None:
            raise _not_found()
        return row

    def _set(self, run_id: str, **columns: str | int) -> None:
        """Change columns by name; the names come from this class, never from outside."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        with self._database.transaction() as connection:
            changed = connection.execute(
                f"UPDATE runs SET {assignments}, updated_seconds = MAX(updated_seconds, ?) WHERE run_id = ?",
                (*columns.values(), time.time(), run_id),
            ).rowcount
        if not changed:
            raise _not_found()


def _record(row: sqlite3.Row) -> RunRecord:
    return RunRecord(
        run_id=row["run_id"],
        owner=row["owner"],
        title=row["title"],
        spec=loads(row["spec"], RunSpec),
        state=RunState(row["state"]),
        created_seconds=row["created_seconds"],
        updated_seconds=row["updated_seconds"],
        headline=row["headline"],
        error=row["error"],
        shared=bool(row["shared"]),
    )


def _checked_title(title: str) -> str:
    title = " ".join(title.split())
    if not 1 <= len(title) <= _TITLE_LIMIT:
        raise InvalidSpec(f"A title has 1 to {_TITLE_LIMIT} characters, got {len(title)}. Enter a shorter one.")
    return title


def _not_found() -> NotFound:
    return NotFound("There is no such run, or it is not yours to see. Open one from the Runs page.")
