"""The SQLite database of runs and of named settings: migrations, one connection per operation, rows as records."""

from __future__ import annotations

import json
import sqlite3
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from senseapp.core.codec import loads
from senseapp.core.errors import InvalidFile, InvalidSpec, QuotaExceeded, StorageFailed
from senseapp.core.files import storage_errors
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.spec import RunSpec

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE runs (
            sequence        INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of creation; clocks can move back
            run_id          TEXT NOT NULL UNIQUE,
            owner           TEXT NOT NULL,
            title           TEXT NOT NULL,
            spec            TEXT NOT NULL,                      -- tagged JSON of a RunSpec
            state           TEXT NOT NULL,
            created_seconds REAL NOT NULL,
            updated_seconds REAL NOT NULL,
            headline        TEXT NOT NULL DEFAULT '',
            error           TEXT NOT NULL DEFAULT '',
            shared          INTEGER NOT NULL DEFAULT 0,
            done            INTEGER NOT NULL DEFAULT 0,         -- measurements stored, when it last changed state
            total           INTEGER NOT NULL DEFAULT 0          -- measurements planned; 0 while unknown
        )
        """,
        "CREATE INDEX runs_of_owner ON runs (owner, sequence)",
        "CREATE INDEX runs_by_state ON runs (state)",
    ),
    (
        "ALTER TABLE runs DROP COLUMN shared",  # a link is now a secret of its own, so that it can be taken back
        "ALTER TABLE runs ADD COLUMN link TEXT NOT NULL DEFAULT ''",  # empty: not shared
        "ALTER TABLE runs ADD COLUMN num_bytes INTEGER NOT NULL DEFAULT 0",  # of its files, when last weighed
        "ALTER TABLE runs ADD COLUMN content_key TEXT NOT NULL DEFAULT ''",  # what decides its measurements
        "ALTER TABLE runs ADD COLUMN origin TEXT NOT NULL DEFAULT ''",
        "CREATE UNIQUE INDEX runs_by_link ON runs (link) WHERE link <> ''",
        "CREATE INDEX runs_by_content ON runs (owner, content_key) WHERE content_key <> ''",
        "CREATE TABLE people (owner TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID",
    ),
    ("ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT ''",),  # separated by commas
    (  # a deletion can be undone for a while; whoever adds a column to runs adds it to deleted_runs too
        "CREATE TABLE deleted_runs AS SELECT *, 0.0 AS deleted_seconds FROM runs WHERE 0",
        "CREATE UNIQUE INDEX deleted_runs_by_id ON deleted_runs (run_id)",
        """
        CREATE TABLE presets (
            owner         TEXT NOT NULL,
            page          TEXT NOT NULL,
            name          TEXT NOT NULL,
            settings      TEXT NOT NULL,  -- JSON: texts by the names of settings
            saved_seconds REAL NOT NULL,
            PRIMARY KEY (owner, page, name)
        ) WITHOUT ROWID
        """,
    ),
)
"""Statements of each schema version, from version 1. Published ones never change: append a new one."""


def migrate(connection: sqlite3.Connection, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS) -> None:
    """Bring a database to the newest schema, each step in a transaction of its own.

    Raises:
        InvalidFile: a newer senseapp made this database.
    """
    connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, applied_seconds REAL)")
    for version, statements in enumerate(migrations, start=1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _version(connection) < version:  # asked inside the transaction: two servers may start at once
                for statement in statements:
                    connection.execute(statement)
                connection.execute("INSERT INTO schema_version VALUES (?, ?)", (version, time.time()))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    if _version(connection) > len(migrations):
        raise InvalidFile(
            f"The database has schema version {_version(connection)}; this senseapp knows versions up to "
            f"{len(migrations)}. Update senseapp, or set SENSEAPP_HOME to another folder."
        )


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("SELECT COALESCE(MAX(version), 0) FROM schema_version").fetchone()
    return int(version)


class Database:
    """The database file of one senseapp home, in write-ahead mode so that readers never wait for a writer.

    A connection stays open without use: closing the last one writes the log back into the file and removes it, which
    takes longer than most operations.

    Args:
        path: the file; it and its folder are made if they are missing.
        busy_seconds: how long an operation waits for another process's write before it gives up.

    Raises:
        StorageFailed: it cannot be opened or made.
        InvalidFile: a newer senseapp made it.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 5.0) -> None:
        self._path = path
        self._busy_seconds = busy_seconds
        with storage_errors(f"the folder {path.parent.name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            migrate(connection)
            idle = sqlite3.connect(path, check_same_thread=False)
            self._close = weakref.finalize(self, idle.close)
            _version(idle)  # opens the log

    def close(self) -> None:
        """Close what stays open between operations; further operations still work."""
        self._close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a connection and a write transaction; commit at the end, roll back if the body raises.

        Raises as :meth:`connection`.
        """
        with self.connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Open a connection, in which each statement is a transaction of its own.

        Raises:
            StorageFailed: the database is locked, damaged, read-only or its disk is full.
        """
        try:
            opened = sqlite3.connect(self._path, timeout=self._busy_seconds, isolation_level=None)
            with closing(opened) as connection:
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
                yield connection
        except sqlite3.Error as error:
            raise StorageFailed(
                f"The database {self._path.name} cannot be used: {error}. "
                "Check that the disk has space, that its folder is writable, and that nothing else holds it; "
                "then try again."
            ) from error


SELECT_RUNS = "SELECT runs.*, COALESCE(people.name, '') AS owner_name FROM runs LEFT JOIN people USING (owner)"


def record_of(row: sqlite3.Row) -> RunRecord:
    """Return a row of :data:`SELECT_RUNS` as its owner sees it.

    Raises:
        InvalidFile: a newer senseapp wrote it.
    """
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
        link=row["link"],
        owner_name=row["owner_name"],
        num_bytes=row["num_bytes"],
        origin=row["origin"],
        tags=tuple(filter(None, row["tags"].split(","))),
    )


def seen_by_link(record: RunRecord) -> RunRecord:
    """Return ``record`` for readers with the link: without id, owner, server paths, origin and tags."""
    spec = record.spec.without_folders()
    return replace(record, run_id=record.link, owner="", read_only=True, spec=spec, origin="", tags=())


PRESET_NAME_LIMIT = 60  # characters in a menu
_MOST = 50  # of one owner on one page
_TEXT_LIMIT = 8000  # characters of all settings of a page


class Presets:
    """Presets in the database of runs: for an owner and a page, texts of settings by the preset's name.

    Raises:
        StorageFailed: from every method, where the database refuses.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, owner: str, page: str) -> dict[str, dict[str, str]]:
        """Return the presets of ``owner`` for ``page``, in the order of their names."""
        with self._database.connection() as connection:
            rows = connection.execute(
                "SELECT name, settings FROM presets WHERE owner = ? AND page = ? ORDER BY name", (owner, page)
            ).fetchall()
        return {row["name"]: json.loads(row["settings"]) for row in rows}

    def save(self, owner: str, page: str, name: str, settings: Mapping[str, str]) -> None:
        """Keep ``settings`` as ``name``, in place of an earlier preset of that name.

        Raises:
            InvalidSpec: the name is empty or too long, or the settings are.
            QuotaExceeded: there are too many presets already.
        """
        name, text = " ".join(name.split()), json.dumps(dict(settings))
        if not 1 <= len(name) <= PRESET_NAME_LIMIT or not name.isprintable():
            raise InvalidSpec(f"A preset has a name of 1 to {PRESET_NAME_LIMIT} characters. Enter another one.")
        if len(text) > _TEXT_LIMIT:
            raise InvalidSpec("These settings are too long for a preset. Lock fewer layers.")
        others = self.of(owner, page).keys() - {name}
        if len(others) >= _MOST:
            raise QuotaExceeded(f"At most {_MOST} presets can be kept for a page. Delete one first.")
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO presets VALUES (?, ?, ?, ?, ?)",
                               (owner, page, name, text, time.time()))  # fmt: skip

    def delete(self, owner: str, page: str, name: str) -> None:
        """Remove a preset; one that does not exist is no error."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM presets WHERE owner = ? AND page = ? AND name = ?", (owner, page, name))
