"""The report on the server itself."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

import senseapp
from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend
from senseapp.server.operations import system_report
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from senseapp.store.run_store import RunStore
from tests.fake_session import FakeEngine, fake_calibration


def test_work_memory_and_disk_are_counted(tmp_path: Path) -> None:
    made = Backend(tmp_path, open_session=FakeEngine(), data_roots=(), calibrate=fake_calibration, workers=0)
    service = Service(made)
    before = service.system()
    service.start(RunSpec())
    service.start(RunSpec())
    service.inputs.reserve_upload(12345)
    made.runner.run_next()
    report = service.system()
    assert (before.waiting, report.waiting, report.running, report.max_queue) == (0, 1, 0, 20)
    assert report.disk.uploads_bytes == 12345
    assert report.disk.runs_bytes > before.disk.runs_bytes
    assert 0 < report.disk.free_bytes < report.disk.total_bytes
    assert 10_000_000 < report.memory_bytes < report.memory_total_bytes
    assert (report.job_processes, report.job_memory_bytes) == (0, 0)
    assert report.threads >= 1
    assert report.processors >= 1
    assert set(dict(report.versions)) >= {"senseapp", "streamlit", "torch"}
    made.close()


def test_memory_of_further_processes_is_counted_while_they_live(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    program = "import sys; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        pids = (other.pid, other.pid)
        report = system_report(tmp_path, store, ServerSettings(), running=0, waiting=0, job_pids=pids)
        assert report.job_processes == 2
        assert report.job_memory_bytes == pytest.approx(2 * psutil.Process(other.pid).memory_info().rss, rel=0.2)
        other.stdin.close()
        other.wait()
    report = system_report(tmp_path, store, ServerSettings(), running=0, waiting=0, job_pids=pids)
    assert (report.job_processes, report.job_memory_bytes) == (0, 0)


def test_the_version_is_said_in_one_place() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "senseapp.__version__"}
    assert senseapp.__version__ == "0.1.0"
