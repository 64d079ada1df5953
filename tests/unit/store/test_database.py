import sqlite3
import threading

import pytest

from senseapp.core.errors import InvalidFile, StorageFailed
from senseapp.store.database import SCHEMA_VERSION, Database


def test_a_new_database_is_in_write_ahead_mode_at_this_version(tmp_path):
    Database(tmp_path / "home" / "runs.sqlite3")
    connection = sqlite3.connect(tmp_path / "home" / "runs.sqlite3")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("SELECT MAX(version) FROM schema_version").fetchone() == (SCHEMA_VERSION,)
    connection.close()


@pytest.mark.parametrize("version", [2, 99])
def test_a_database_of_another_version_is_refused(tmp_path, version):
    path = tmp_path / "other.sqlite3"
    Database(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version = ?", (version,))
    connection.close()
    with pytest.raises(InvalidFile, match=f"schema version {version}"):
        Database(path)


def test_an_error_rolls_back(tmp_path):
    database = Database(tmp_path / "runs.sqlite3")

    def fail():
        with database.transaction() as connection:
            connection.execute("INSERT INTO schema_version VALUES (50, 0)")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with database.connection() as connection:
        assert connection.execute("SELECT MAX(version) FROM schema_version").fetchone()[0] == SCHEMA_VERSION


def test_the_log_is_written_back_when_the_database_is_closed_and_not_after_each_operation(tmp_path):
    database, log = Database(tmp_path / "runs.sqlite3"), tmp_path / "runs.sqlite3-wal"
    for version in (1000, 1001):
        with database.transaction() as connection:
            connection.execute("INSERT INTO schema_version VALUES (?, 0)", (version,))
        assert log.stat().st_size
    database.close()
    assert not log.exists()
    with database.connection() as connection:
        assert connection.execute("SELECT MAX(version) FROM schema_version").fetchone()[0] == 1001


def test_a_locked_database_is_one_sentence_and_works_again_afterwards(tmp_path):
    database = Database(tmp_path / "runs.sqlite3", busy_seconds=0.05)
    other = sqlite3.connect(tmp_path / "runs.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageFailed, match="locked"), database.transaction():
        pass
    other.execute("ROLLBACK")
    other.close()
    with database.transaction():
        pass


@pytest.mark.parametrize(("path", "said"), [("file", "not a database"), ("file/home/runs.sqlite3", "folder")])
def test_a_damaged_file_or_a_home_that_cannot_be_made_is_one_sentence(tmp_path, path, said):
    (tmp_path / "file").write_bytes(b"this is no database" * 100)
    with pytest.raises(StorageFailed, match=said):
        Database(tmp_path / path)


def test_writers_in_many_threads_all_succeed(tmp_path):
    database = Database(tmp_path / "runs.sqlite3")

    def write(start):
        for number in range(10):
            with database.transaction() as connection:
                connection.execute("INSERT INTO schema_version VALUES (?, 0)", (start + number,))

    threads = [threading.Thread(target=write, args=(1000 * (index + 1),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.connection() as connection:
        count = connection.execute("SELECT COUNT(*) FROM schema_version WHERE version >= 1000").fetchone()[0]
        assert count == 40
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
