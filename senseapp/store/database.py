"""Short SQLite connections: one per operation, never shared between threads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from senseapp.errors import StorageFailed
from senseapp.store.disk import storage_errors
from senseapp.store.schema import migrate


class Database:
    """The database file of one senseapp home, in write-ahead mode so that readers never wait for a writer.

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
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            migrate(connection)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a connection and a write transaction; commit at the end, roll back if the body raises.

        Raises:
            StorageFailed: the database is locked, damaged, read-only or its disk is full.
        """
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one query.

        Raises:
            StorageFailed: the database cannot be read.
        """
        with self._connection() as connection:
            yield connection

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
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
