"""The report on the server itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

import senseapp
from senseapp.service import Backend, Service
from senseapp.spec import RunSpec
from tests.fake_session import FakeEngine, fake_calibration


def test_work_memory_and_disk_are_counted(tmp_path: Path) -> None:
    made = Backend(tmp_path, open_session=FakeEngine(), data_roots=(), calibrate=fake_calibration, workers=0)
    service = Service(made)
    before = service.system()
    service.start(RunSpec())
    service.start(RunSpec())
    service.reserve_upload(12345)
    made.runner.run_next()
    report = service.system()
    assert (before.waiting, report.waiting, report.running, report.max_queue) == (0, 1, 0, 20)
    assert report.disk.uploads_bytes == 12345
    assert report.disk.runs_bytes > before.disk.runs_bytes
    assert 0 < report.disk.free_bytes < report.disk.total_bytes
    assert 10_000_000 < report.memory_bytes < report.memory_total_bytes
    assert report.threads >= 1
    assert report.processors >= 1
    assert set(dict(report.versions)) >= {"senseapp", "streamlit", "torch"}
    made.close()


def test_the_version_is_said_in_one_place() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "senseapp.__version__"}
    assert senseapp.__version__ == "0.1.0"
