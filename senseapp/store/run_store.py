"""Runs of one senseapp home: owner, state, metadata and the folder of each run's files."""

import re
import secrets
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from senseapp.core.codec import dumps
from senseapp.core.errors import InvalidFile, InvalidSpec, NotFound
from senseapp.core.files import bytes_in, remove_temporaries, storage_errors
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.spec import RunSpec
from senseapp.store.database import SELECT_RUNS, Database, record_of, seen_by_link
from senseapp.store.run_folder import RunFolder

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_LINK = re.compile(r"[0-9a-f]{40}")
_TITLE_LIMIT = 200  # characters: a line on a page
_MOST_TAGS, _TAG_LIMIT = 10, 30  # of a run, in one row of a table; characters of one
INTERRUPTED_SENTENCES = (  # before and after the first measurement
    "senseapp stopped before this run was finished. Press Resume to go on.",
    "senseapp stopped before this run was finished. Everything measured so far is kept; press Resume to go on.",
)


class RunStore:
    """Runs in a database and their files in folders.

    A method with a ``viewer`` is for requests from outside: any text may come as ``run_id``, it is looked up and never
    made part of a path, and whoever may not see the run gets the same answer as if it did not exist. Methods without
    one are for the worker, which only knows ids that the store itself gave out. The files of all runs lie in
    ``folder_of_runs``. Methods with a ``run_id`` raise NotFound where there is no such run (any more) or the viewer may
    not see it; for a change, where the viewer does not own it, shared or not. All raise StorageFailed where the disk or
    the database refuses.
    """

    def __init__(self, home: Path) -> None:
        self.folder_of_runs = home / "runs"
        self._database = Database(home / "senseapp.sqlite3")
        with storage_errors(f"the folder {self.folder_of_runs.name}"):
            self.folder_of_runs.mkdir(exist_ok=True)

    def close(self) -> None:
        """Close what the database keeps open between operations."""
        self._database.close()

    def create(
        self,
        spec: RunSpec,
        *,
        owner: str,
        title: str = "",
        fill: Callable[[RunFolder], None] | None = None,
        **columns: str | int,
    ) -> RunRecord:
        """Enter a run, whose id cannot be guessed: a queued one, or one that is done, whose files ``fill`` writes.

        Its folder is made before its row: a process that dies meanwhile leaves no run.
        """
        run_id, now = uuid.uuid4().hex, time.time()
        row: dict[str, str | int | float] = {
            "run_id": run_id,
            "owner": owner,
            "title": _checked_title(title or spec.model.title),
            "spec": dumps(spec),
            "state": RunState.QUEUED if fill is None else RunState.DONE,
            "created_seconds": now,
            "updated_seconds": now,
            **columns,
        }
        folder = RunFolder(self.folder_of_runs / run_id)
        try:
            folder.make()
            folder.claim(spec)
            if fill is not None:
                fill(folder)
            row["num_bytes"] = bytes_in(folder.path)
            marks = ", ".join("?" * len(row))
            self._database.change(f"INSERT INTO runs ({', '.join(row)}) VALUES ({marks})", *row.values())
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        return self.record(run_id)

    def get(self, run_id: str, viewer: str) -> RunRecord:
        """Return a run of ``viewer``, or the one whose link ``run_id`` is, as far as the link may show it."""
        record = self._find(run_id, viewer)
        return seen_by_link(record) if run_id == record.link else record

    def readable(self, run_id: str, viewer: str) -> str:
        """Return the true id of a run that ``viewer`` owns or whose link ``run_id`` is: the one check before a read."""
        return self._find(run_id, viewer).run_id

    def owned(self, run_id: str, viewer: str) -> RunRecord:
        """Return a run that ``viewer`` owns: the one check before a change."""
        record = self.record(run_id)
        if record.owner != viewer:
            raise _not_found()
        return record

    def list(self, viewer: str) -> tuple[RunRecord, ...]:
        """Return the runs of ``viewer``, the newest first; shared runs of others open by their link only."""
        return tuple(
            map(record_of, self._database.rows(f"{SELECT_RUNS} WHERE owner = ? ORDER BY sequence DESC", viewer))
        )

    def finished_specs(self, viewer: str) -> Sequence[RunSpec]:
        """Return the settings of this viewer's finished runs, whose results others of them use."""
        return [record.spec for record in self.list(viewer) if record.state is RunState.DONE]

    def reads_upload(self, name: str) -> bool:
        """Return whether the settings of any run, whoever owns it, name the upload whose folder is ``name``."""
        specs = "SELECT spec FROM runs UNION ALL SELECT spec FROM deleted_runs"
        return bool(self._database.rows(f"SELECT 1 FROM ({specs}) WHERE instr(spec, ?) > 0 LIMIT 1", name))

    def rename(self, run_id: str, viewer: str, title: str) -> None:
        """Change what people see; raises InvalidSpec where the title is empty or too long."""
        self.owned(run_id, viewer)
        self.update(run_id, title=_checked_title(title))

    def tag(self, run_id: str, viewer: str, tags: Sequence[str]) -> None:
        """Change the words that its owner finds a run by; InvalidSpec where they are too many or too long."""
        self.owned(run_id, viewer)
        kept = list(dict.fromkeys(text for tag in tags if (text := " ".join(tag.replace(",", " ").split()))))
        if len(kept) > _MOST_TAGS or any(len(tag) > _TAG_LIMIT for tag in kept):
            raise InvalidSpec(f"A run has at most {_MOST_TAGS} tags of at most {_TAG_LIMIT} characters. Enter fewer.")
        self.update(run_id, tags=",".join(kept))

    def share(self, run_id: str, viewer: str, *, shared: bool) -> str:
        """Make the run readable with its link, and return it, or private; a revoked link never works again."""
        if shared != self.owned(run_id, viewer).shared:
            self.update(run_id, link=secrets.token_hex(20) if shared else "")
        return self.record(run_id).link

    def delete(self, run_id: str, viewer: str) -> None:
        """Take a run away from everybody; :meth:`restore` brings it back until :meth:`remove_deleted` removes it."""
        known = self.owned(run_id, viewer).run_id
        with self._database.transaction() as connection:
            connection.execute("INSERT INTO deleted_runs SELECT *, ? FROM runs WHERE run_id = ?", (time.time(), known))
            connection.execute("DELETE FROM runs WHERE run_id = ?", (known,))

    def restore(self, run_id: str, viewer: str) -> RunRecord:
        """Undo :meth:`delete`; NotFound where the run was removed meanwhile or is somebody else's."""
        cannot = NotFound("There is no such deleted run, or it is not yours, or its files were removed since.")
        if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
            raise cannot
        with self._database.transaction() as connection:
            columns = ", ".join(row["name"] for row in connection.execute("PRAGMA table_info(runs)"))
            restored = connection.execute(
                f"INSERT INTO runs ({columns}) SELECT {columns} FROM deleted_runs WHERE run_id = ? AND owner = ?",
                (run_id, viewer),
            ).rowcount
            if not restored:
                raise cannot
            connection.execute("DELETE FROM deleted_runs WHERE run_id = ?", (run_id,))
        return self.record(run_id)

    def remove_deleted(self, *, older_seconds: float = 0.0) -> None:
        """Remove the files of runs that were deleted at least ``older_seconds`` ago, for good."""
        with self._database.transaction() as connection:
            gone = connection.execute(
                "DELETE FROM deleted_runs WHERE deleted_seconds <= ? RETURNING run_id", (time.time() - older_seconds,)
            ).fetchall()
        for row in gone:
            shutil.rmtree(self.folder_of_runs / row["run_id"], ignore_errors=True)  # recover() sweeps what is left

    def remove(self, run_id: str) -> None:
        """Remove a run and its files, whoever owns it."""
        known = self.record(run_id).run_id
        self._database.change("DELETE FROM runs WHERE run_id = ?", known)
        shutil.rmtree(self.folder_of_runs / known, ignore_errors=True)  # recover() sweeps what is left

    def record(self, run_id: str) -> RunRecord:
        """Return a run whoever owns it."""
        return record_of(self._row(run_id))

    def progress(self, run_id: str) -> tuple[int, int]:
        """Return measurements stored at the last change of state, and planned (0 while unknown)."""
        row = self._row(run_id)
        return row["done"], row["total"]

    def folder(self, run_id: str) -> RunFolder:
        """Return the files of a run."""
        return RunFolder(self.folder_of_runs / self.record(run_id).run_id)

    def set_state(
        self, run_id: str, state: RunState, *, error: str = "", done: int | None = None, total: int | None = None
    ) -> None:
        """Move a run on; figures that are None stay."""
        counts = {name: count for name, count in (("done", done), ("total", total)) if count is not None}
        self.update(run_id, state=state, error=error, **counts)

    def update(self, run_id: str, **columns: str | int) -> None:
        """Store columns of a run, such as its ``headline``; names come from code, never from outside."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        update = f"UPDATE runs SET {assignments}, updated_seconds = MAX(updated_seconds, ?) WHERE run_id = ?"
        if not self._database.change(update, *columns.values(), time.time(), run_id):
            raise _not_found()

    def others(self, run_id: str, most: int = 100) -> tuple[tuple[str, str, str], ...]:
        """Return id, title and content key of the same owner's newest other runs; nobody else's, ever."""
        query = (
            "SELECT run_id, title, content_key FROM runs WHERE owner = ? AND run_id <> ? ORDER BY sequence DESC LIMIT ?"
        )
        rows = self._database.rows(query, self.record(run_id).owner, run_id, most)
        return tuple((row["run_id"], row["title"], row["content_key"]) for row in rows)

    def set_owner_name(self, owner: str, name: str) -> None:
        """Keep what an owner is called, to be shown beside what they share."""
        self._database.change("INSERT OR REPLACE INTO people VALUES (?, ?)", owner, name)

    def is_expert(self, owner: str) -> bool:
        """Return whether an owner wants the terms of the field and every setting."""
        return bool(self._database.rows("SELECT 1 FROM experts WHERE owner = ?", owner))

    def set_expert(self, owner: str, *, expert: bool) -> None:
        """Keep whether an owner does."""
        statement = "INSERT OR REPLACE INTO experts VALUES (?)" if expert else "DELETE FROM experts WHERE owner = ?"
        self._database.change(statement, owner)

    def update_size(self, run_id: str) -> None:
        """Keep how much disk space the files of a run take now; one that was deleted meanwhile is left out."""
        num_bytes = bytes_in(self.folder_of_runs / run_id) if _RUN_ID.fullmatch(run_id) else 0
        self._database.change("UPDATE runs SET num_bytes = ? WHERE run_id = ?", num_bytes, run_id)

    def bytes_used(self, owner: str | None = None) -> int:
        """Return the disk space of the runs of ``owner``, or of everybody, at the last :meth:`update_size`."""
        total = "SELECT COALESCE(SUM(num_bytes), 0) FROM runs WHERE ? IS NULL OR owner = ?"
        return int(self._database.rows(total, owner, owner)[0][0])

    def unchanged_since(self, seconds: float) -> tuple[str, ...]:
        """Return the ids of runs that ended and were not changed after ``seconds``, in Unix time."""
        states = [state for state in RunState if state.finished]
        marks = ", ".join("?" * len(states))
        ended = f"SELECT run_id FROM runs WHERE state IN ({marks}) AND updated_seconds < ?"
        return tuple(row["run_id"] for row in self._database.rows(ended, *states, seconds))

    def recover(self) -> tuple[str, ...]:
        """After a start: mark what a stopped server left behind as interrupted, and sweep files without a run.

        A run that had stored its result is done. Half-written files go with those that belong to no run.

        Returns:
            Ids of the runs that were interrupted, the oldest first.
        """
        self.remove_deleted()
        folders = [path for path in self.folder_of_runs.iterdir() if _RUN_ID.fullmatch(path.name)]  # before the rows
        rows = self._database.rows("SELECT run_id, state FROM runs ORDER BY sequence")
        known = {row["run_id"]: RunState(row["state"]) for row in rows}
        interrupted = tuple(run_id for run_id, state in known.items() if not state.finished)
        for run_id in interrupted:
            self._interrupt(run_id)
            self.update_size(run_id)
        for path in folders:
            if path.name in known:
                remove_temporaries(path, beside_others=False)
            else:
                shutil.rmtree(path, ignore_errors=True)
        return interrupted

    def _interrupt(self, run_id: str) -> None:
        folder = self.folder(run_id)
        try:
            done = sum(1 for _ in folder.measurements.history())
            result = folder.load_result() if folder.finished else None
        except InvalidFile as error:  # one damaged run must not keep the others from being served
            self.set_state(run_id, RunState.FAILED, error=str(error))
            return
        if result is None:
            self.set_state(run_id, RunState.INTERRUPTED, error=INTERRUPTED_SENTENCES[done > 0], done=done)
        else:
            self.update(run_id, headline=result.summary)
            self.set_state(run_id, RunState.DONE, done=done)

    def _find(self, run_id: str, viewer: str) -> RunRecord:
        if isinstance(run_id, str) and _LINK.fullmatch(run_id):
            return record_of(self._row(run_id, "link"))
        return self.owned(run_id, viewer)

    def _row(self, value: str, column: str = "run_id") -> sqlite3.Row:
        """Return the row of a run by its id, or by its link."""
        is_one = isinstance(value, str) and (column == "link" or _RUN_ID.fullmatch(value))
        if not is_one or not (found := self._database.rows(f"{SELECT_RUNS} WHERE {column} = ?", value)):
            raise _not_found()
        return found[0]


def _checked_title(title: str) -> str:
    title = " ".join(title.split())
    if not 1 <= len(title) <= _TITLE_LIMIT:
        raise InvalidSpec(f"A title has 1 to {_TITLE_LIMIT} characters, got {len(title)}. Enter a shorter one.")
    return title


def _not_found() -> NotFound:
    return NotFound("There is no such run, or it is not yours to see. Open one from the Runs page.")
