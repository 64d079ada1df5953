"""Logs: JSON lines with their run, each run's own for its owner, no secrets; and the report on the server itself."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from senseapp.app.common.account import memory_of
from senseapp.core.errors import InvalidDataset, NotFound
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend
from senseapp.server.operations import JsonLines, during_run, log_to, read_run_log
from senseapp.server.service import Service
from tests.fake_session import FakeEngine, a_backend


def backend(home: Path, error: Exception | None = None) -> Backend:
    engine = FakeEngine()

    def fail(number: int) -> None:
        if error is not None:
            raise error

    engine.before_yield = fail
    return a_backend(home, engine)


@pytest.mark.parametrize(
    "error", [InvalidDataset("No picture in sight. Bring some."), RuntimeError("tensors collided")]
)
def test_a_failed_run_keeps_its_log_for_its_owner(tmp_path: Path, error: Exception) -> None:
    made = backend(tmp_path, error)
    service = Service(made, "ann")
    run_id = service.start(RunSpec())
    made.runner.run_next()
    assert service.run(run_id).state is RunState.FAILED
    entries = service.run_log(run_id)
    assert [entry.message for entry in entries][:2] == ["Run of demo begins", "Reading the model and the images"]
    assert str(error) in entries[-1].trace
    assert "Traceback" in entries[-1].trace
    assert [entry.time for entry in entries] == sorted(entry.time for entry in entries)
    service.share(run_id, shared=True)
    for somebody in (Service(made, "bob"), Service(made, "")):
        with pytest.raises(NotFound):
            somebody.run_log(run_id)
        with pytest.raises(NotFound):
            somebody.run_log(made.store.record(run_id).link)
    made.close()


def test_runs_do_not_mix_their_logs_and_a_closed_backend_writes_none(tmp_path: Path) -> None:
    made = backend(tmp_path)
    service = Service(made)
    first, second = service.start(RunSpec()), service.start(RunSpec())
    made.runner.run_next()
    before = service.run_log(first)
    made.runner.run_next()
    assert service.run_log(first) == before
    assert service.run_log(second)
    made.close()
    with during_run(first):
        logging.getLogger("senseapp.server").error("late")
    assert service.run_log(first) == before


def test_nothing_is_written_for_a_run_that_is_not_there(tmp_path: Path) -> None:
    made = backend(tmp_path)
    for run_id in ("0" * 32, "../../etc", "x"):
        with during_run(run_id):
            logging.getLogger("senseapp.server").error("hello")
    assert not list(tmp_path.rglob("log.jsonl"))
    made.close()


def test_lines_that_a_crash_cut_are_left_out(tmp_path: Path) -> None:
    whole = {"time": "2026-01-01T00:00:00.000+00:00", "level": "info", "message": "Hello"}
    (tmp_path / "log.jsonl").write_text("[]\nnull\n" + json.dumps(whole) + '\n{"time": "2026-01-0')
    assert [entry.message for entry in read_run_log(tmp_path)] == ["Hello"]
    assert read_run_log(tmp_path / "nowhere") == ()


def test_each_line_is_json_with_the_run_and_the_trace() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("senseapp.x", logging.ERROR, "", 1, "failed: %s", ("é",), sys.exc_info())
    record.run = "abc"
    line = JsonLines().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["level"], told["logger"], told["run"], told["message"]) == ("error", "senseapp.x", "abc", "failed: é")
    assert told["trace"].endswith("ValueError: two\nlines")


def test_secrets_are_blotted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENSEAPP_METRICS_TOKEN", "hunter2-metrics")
    monkeypatch.setenv("SHORT_TOKEN", "of")
    try:
        raise ValueError("Bearer hunter2-metrics")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 1, "login of %s", ("cookie.hunter2-cookie",), sys.exc_info())
    line = JsonLines(["hunter2-cookie", "hunter2"]).format(record)
    assert "hunter2" not in line
    assert json.loads(line)["message"] == "login of cookie.[secret]"


def test_the_server_logs_into_its_home(tmp_path: Path) -> None:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        log_to(tmp_path)
        logging.getLogger("senseapp.test").info("served")
        (line,) = (tmp_path / "logs" / "senseapp.jsonl").read_text().splitlines()
        assert json.loads(line)["message"] == "served"
    finally:
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
        logging.captureWarnings(False)


def test_work_and_disk_are_counted(tmp_path: Path) -> None:
    made = a_backend(tmp_path)
    service = Service(made)
    before = service.system()
    service.start(RunSpec())
    service.start(RunSpec())
    made.runner.run_next()
    report = service.system()
    assert (before.waiting, report.waiting, report.running, report.settings.max_queue) == (0, 1, 0, 20)
    assert report.runs_bytes > before.runs_bytes
    assert (report.job_pids, report.problems) == ((), ())
    made.close()


def test_memory_of_further_processes_is_counted_while_they_live() -> None:
    program = "import sys; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        found = psutil.Process(other.pid).memory_info().rss
        assert memory_of((other.pid,)) == [pytest.approx(found, rel=0.2)]
        other.stdin.close()
        other.wait()
    assert memory_of((other.pid,)) == []
