"""A full or read-only disk, a locked database, a clock that moves back, a job too large: a sentence, and on it goes."""

import errno
import os
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from senseapp.core.errors import OutOfMemory, StorageFailed
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.machine import memory_limit
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from tests.cases import first_of
from tests.fake_session import SPEC, TOTAL, a_backend, carried_out

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the Linux kernel")


@pytest.fixture
def backend(backend):
    backend.store._database._busy_seconds = 0.05
    return backend


class Lock:
    """Another program that holds the database for writing."""

    def __init__(self, home):
        self._connection = sqlite3.connect(home / "senseapp.sqlite3", isolation_level=None)

    def take(self):
        self._connection.execute("BEGIN IMMEDIATE")

    def give_back(self):
        self._connection.execute("ROLLBACK")


def refusing(code):
    """Return what raises the operating system's error."""

    def refuse(descriptor):
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_disk_that_refuses_fails_the_run_with_a_sentence_and_the_next_one_runs(service, engine, monkeypatch, code):
    def fill_the_disk(number):
        if number == 3:
            monkeypatch.setattr(os, "fsync", refusing(code))

    engine.before_yield = fill_the_disk
    run_id = carried_out(service)
    failed = service.snapshot(run_id)
    assert failed.state is RunState.FAILED
    assert os.strerror(code) in failed.error
    assert "Check that the disk has space and that its folder is writable" in failed.error

    monkeypatch.undo()
    engine.before_yield = lambda number: None
    assert service.run(carried_out(service)).state is RunState.DONE
    service.resume(run_id)
    service._backend.runner.run_next()
    assert len(service.result(run_id).measurements) == TOTAL


def test_a_full_disk_takes_no_new_run_and_leaves_no_half_one(service, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refusing(errno.ENOSPC))
        with pytest.raises(StorageFailed, match="No space left on device"):
            service.start(SPEC)
    assert service.runs() == ()
    assert service.run(carried_out(service)).state is RunState.DONE


@linux_only
def test_a_home_that_cannot_be_written_is_named_with_what_to_do():
    with pytest.raises(StorageFailed, match="Check that the disk has space and that its folder is writable"):
        Backend(Path("/sys/senseapp"), workers=0)  # nobody may make a folder there, not even root


def test_a_locked_database_is_named_and_a_run_that_is_measured_then_is_not_lost(service, backend, engine, tmp_path):
    lock = Lock(tmp_path)
    engine.before_yield = lambda number: lock.take() if number == 2 else None
    run_id = carried_out(service)
    failed = service.run(run_id)
    assert failed.state is RunState.FAILED  # in memory only: the lock is still held
    assert "database is locked" in failed.error
    with pytest.raises(StorageFailed, match="database is locked"):
        service.start(SPEC)
    with sqlite3.connect(tmp_path / "senseapp.sqlite3") as database:
        assert database.execute("SELECT state FROM runs").fetchone() == ("running",)

    lock.give_back()
    engine.before_yield = lambda number: None
    assert service.run(run_id).state is RunState.FAILED
    service.resume(run_id)
    backend.runner.run_next()
    assert service.run(run_id).state is RunState.DONE
    assert len(service.result(run_id).measurements) == TOTAL


def test_old_runs_go_when_the_settings_say_so(tmp_path, engine, monkeypatch):
    def started(days):
        return Service(a_backend(tmp_path, engine, settings=ServerSettings(keep_days=days)), "ann")

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 40 * 86_400)
    service = started(0)
    old = carried_out(service)
    monkeypatch.setattr(time, "time", lambda: now)
    new = carried_out(service)
    assert len(started(0).runs()) == 2
    assert [record.run_id for record in started(30).runs()] == [new]
    assert not (tmp_path / "runs" / old).exists()


@linux_only
@pytest.mark.parametrize("asks_for", first_of([lambda: bytearray(2_000_000_000), None]), ids=["python", "torch"])
def test_a_job_that_asks_for_too_much_memory_ends_with_a_sentence_and_the_next_one_runs(asks_for, monkeypatch):
    monkeypatch.setenv("SENSEAPP_JOB_MEMORY_MB", "300")
    torch = pytest.importorskip("torch")
    take = asks_for or (lambda: torch.empty(2_000_000_000, dtype=torch.uint8))
    sentence = r"^This needs more memory than there is for one run here \(0\.3 GB\)\."
    with pytest.raises(OutOfMemory, match=sentence), memory_limit():
        take()
    with memory_limit():
        assert len(bytearray(100_000_000)) > 0
    assert len(bytearray(400_000_000)) > 0  # the limit is gone with the job


@pytest.mark.wide
@pytest.mark.slow
def test_two_workers_measure_two_runs_at_once_with_the_numbers_of_one(tmp_path):
    settings = SensitivitySpec(levels=(0.5, 0.9), num_samples=16, layers=("layer[23]*", "fc"))
    specs = [RunSpec(sensitivity=SensitivitySpec(**_fields(settings, seed=seed))) for seed in (0, 1)]
    alone = Service(Backend(tmp_path / "one", data_roots=(), workers=0), "ann")
    expected = [alone.result(carried_out(alone, spec)) for spec in specs]
    both = Service(Backend(tmp_path / "two", data_roots=(), workers=2), "ann")
    found = [both.start(spec) for spec in specs]
    deadline = time.monotonic() + 120
    while not all(both.snapshot(run_id).state.finished for run_id in found):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for run_id, whole in zip(found, expected, strict=True):
        assert both.snapshot(run_id).error == ""
        result = both.result(run_id)
        assert {item.key for item in result.measurements} == {item.key for item in whole.measurements}
        for item in result.measurements:
            same = next(other for other in whole.measurements if other.key == item.key)
            assert item.change("kl").delta == pytest.approx(same.change("kl").delta, rel=1e-4, abs=1e-9)
    both._backend.close()


def _fields(settings, **changes):
    return {name: getattr(settings, name) for name in settings.__slots__} | changes
