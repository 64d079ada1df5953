"""The tables of the database, as a list of migrations. Published ones never change: append a new one."""

from __future__ import annotations

import sqlite3
import time

from senseapp.errors import InvalidFile

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
)
"""Statements of each schema version, from version 1."""


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
