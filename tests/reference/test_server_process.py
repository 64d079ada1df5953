"""Runs in a process of their own: the same numbers as in this one, and a server that outlives them."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from senseapp.records.jobs import RunState
from senseapp.records.measurement import RunResult
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.process.processes import JobProcesses
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from tests.fake_session import fake_calibration

pytestmark = pytest.mark.slow

SPEC = RunSpec(sensitivity=SensitivitySpec(levels=(0.5, 0.9), num_samples=64))
LONG = RunSpec(sensitivity=SensitivitySpec(levels=tuple(n / 10 for n in range(1, 10)), num_samples=96))
FEW = 5
SHORT = SensitivitySpec(levels=(0.5,), num_samples=1)
SECONDS = 120.0


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    found = Backend(
        tmp_path_factory.mktemp("home"),
        data_roots=(),
        workers=0,
        settings=ServerSettings(job_processes=True),
        calibrate=fake_calibration,
    )
    yield found
    found.close()


@pytest.fixture(scope="module")
def finished(backend: Backend) -> str:
    run_id = Service(backend).start(SPEC)
    backend.runner.run_next()
    return run_id


def processes_of(backend: Backend) -> JobProcesses:
    assert backend.processes is not None
    return backend.processes


def numbers(result: RunResult | None) -> list[object]:
    assert result is not None
    return [(item.key, item.changes, item.status) for item in (*result.measurements, *result.estimates)]


@pytest.mark.wide
def test_the_numbers_are_those_of_a_run_in_this_process(backend: Backend, finished: str, tmp_path: Path) -> None:
    here = Backend(tmp_path, data_roots=(), workers=0, calibrate=fake_calibration)
    run_id = Service(here).start(SPEC)
    here.runner.run_next()
    there = Service(backend).result(finished)
    assert there is not None
    assert len(there.measurements) == 2 * len(there.profile.layers)
    assert numbers(there) == numbers(Service(here).result(run_id))
    here.close()


@pytest.mark.wide
def test_a_run_whose_process_is_killed_fails_with_a_sentence_and_goes_on_where_it_was(backend: Backend) -> None:
    service = Service(backend)
    run_id = service.start(LONG)
    worker = threading.Thread(target=backend.runner.run_next)
    worker.start()
    deadline = time.monotonic() + SECONDS
    while service.snapshot(run_id).done < FEW and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in processes_of(backend).pids():
        os.kill(pid, signal.SIGKILL)
    worker.join(SECONDS)
    stopped = service.snapshot(run_id)
    assert stopped.state is RunState.FAILED
    assert "was killed, most often because memory ran out. What was measured is kept" in stopped.error
    kept = service.result(run_id)
    assert kept is not None
    assert FEW <= len(kept.measurements) < stopped.total
    service.resume(run_id)
    backend.runner.run_next()
    whole = service.result(run_id)
    assert whole is not None
    assert len(whole.measurements) == stopped.total
    assert set(numbers(kept)) <= set(numbers(whole))


@pytest.mark.wide
def test_a_network_too_large_for_the_memory_fails_alone(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENSEAPP_JOB_MEMORY_MB", "300")
    for pid in processes_of(backend).pids():  # the next one is started with that limit
        os.kill(pid, signal.SIGKILL)
    service = Service(backend)
    large = RunSpec(
        model=ModelSpec(library="timm", name="vit_huge_patch14_224", num_classes=10),
        data=DataSpec(kind="random"),
        sensitivity=SHORT,
    )
    failed, done = service.start(large), service.start(RunSpec(sensitivity=SHORT))
    while backend.runner.run_next():
        pass
    assert "memory" in service.snapshot(failed).error
    assert service.snapshot(done).state is RunState.DONE
