"""The SQLite database of runs and people: its tables, one connection per operation, rows as records."""

import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path

from senseapp.core.codec import loads
from senseapp.core.errors import InvalidFile, StorageFailed
from senseapp.core.files import storage_errors
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.spec import RunSpec, without_folders

SCHEMA_VERSION = 5
_SYNCHRONOUS = "FULL"  # a commit survives a power cut
_KEPT_SPECS = 256  # settings of runs, read once for all the times that a page asks for their record
_SCHEMA = (
    "CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_seconds REAL)",
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
        done            INTEGER NOT NULL DEFAULT 0,         -- measurements stored, when it last changed state
        total           INTEGER NOT NULL DEFAULT 0,         -- measurements planned; 0 while unknown
        link            TEXT NOT NULL DEFAULT '',           -- a secret of its own, to be taken back; empty: not shared
        num_bytes       INTEGER NOT NULL DEFAULT 0,         -- of its files, when last weighed
        content_key     TEXT NOT NULL DEFAULT '',           -- what decides its measurements
        origin          TEXT NOT NULL DEFAULT '',
        tags            TEXT NOT NULL DEFAULT ''            -- separated by commas
    )
    """,
    "CREATE INDEX runs_of_owner ON runs (owner, sequence)",
    "CREATE INDEX runs_by_state ON runs (state)",
    "CREATE UNIQUE INDEX runs_by_link ON runs (link) WHERE link <> ''",
    "CREATE INDEX runs_by_content ON runs (owner, content_key) WHERE content_key <> ''",
    "CREATE TABLE people (owner TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE deleted_runs AS SELECT *, 0.0 AS deleted_seconds FROM runs",  # a deletion can be undone for a while
    "CREATE UNIQUE INDEX deleted_runs_by_id ON deleted_runs (run_id)",
    "CREATE TABLE experts (owner TEXT PRIMARY KEY) WITHOUT ROWID",  # people with the switch Expert on
    f"INSERT INTO schema_version VALUES ({SCHEMA_VERSION}, strftime('%s', 'now'))",
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
        InvalidFile: another senseapp made it.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 5.0) -> None:
        self._path = path
        self._busy_seconds = busy_seconds
        with storage_errors(f"the folder {path.parent.name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        with self.transaction() as connection:  # asked inside the transaction: two servers may start at once
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone():
                for statement in _SCHEMA:
                    connection.execute(statement)
            version = _version(connection)
        if version != SCHEMA_VERSION:
            raise InvalidFile(
                f"The database has schema version {version}; this senseapp knows version {SCHEMA_VERSION}. Use the "
                "senseapp that made it, or set SENSEAPP_HOME to another folder."
            )
        with self.connection():
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
            with connection:  # commits, or rolls back
                yield connection

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Open a connection without a transaction; StorageFailed where the database is locked, damaged or full."""
        try:
            opened = sqlite3.connect(self._path, timeout=self._busy_seconds, isolation_level=None)
            with closing(opened) as connection:
                connection.row_factory = sqlite3.Row
                connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")
                yield connection
        except sqlite3.Error as error:
            raise StorageFailed(
                f"The database {self._path.name} cannot be used: {error}. "
                "Check that the disk has space, that its folder is writable, and that nothing else holds it; "
                "then try again."
            ) from error

    def rows(self, statement: str, *values: object) -> list[sqlite3.Row]:
        """Return the rows that a statement selects; raises as :meth:`connection`."""
        with self.connection() as connection:
            return connection.execute(statement, values).fetchall()

    def change(self, statement: str, *values: object) -> int:
        """Execute a statement in a transaction of its own; return how many rows it changed."""
        with self.transaction() as connection:
            return connection.execute(statement, values).rowcount


SELECT_RUNS = "SELECT runs.*, COALESCE(people.name, '') AS owner_name FROM runs LEFT JOIN people USING (owner)"


@lru_cache(_KEPT_SPECS)
def _spec_of(text: str) -> RunSpec:
    return loads(text, RunSpec)


def record_of(row: sqlite3.Row) -> RunRecord:
    """Return a row of :data:`SELECT_RUNS` as its owner sees it; raises InvalidFile where a newer senseapp wrote it."""
    plain = {each.name: row[each.name] for each in fields(RunRecord) if each.name in row.keys()}  # noqa: SIM118
    tags = tuple(filter(None, row["tags"].split(",")))
    return RunRecord(**plain | {"spec": _spec_of(row["spec"]), "state": RunState(row["state"]), "tags": tags})


def seen_by_link(record: RunRecord) -> RunRecord:
    """Return ``record`` for readers with the link: without id, owner, server paths, origin and tags."""
    spec = without_folders(record.spec)
    return replace(record, run_id=record.link, owner="", read_only=True, spec=spec, origin="", tags=())
