"""Hostile LiteRT files, in processes of their own: each is refused with one sentence, run, or costs its process."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert", reason="the extra litert is not installed")
pytestmark = pytest.mark.slow

from senseapp.cli.main import main  # noqa: E402
from soak.litert import run_once  # noqa: E402
from soak.onnx import LONGEST_SENTENCE, outcome_of  # noqa: E402
from tests.hostile_tflite import BY_HAND, RUN, mutated, sound  # noqa: E402
from tests.onnx_graphs import file_of, node  # noqa: E402

CRASHES = 1733
"""Seed of a file that ends LiteRT's interpreter."""
_MOST_SECONDS = 40.0  # on a busy machine; a call may take 16


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    for is_int8 in (False, True):
        run_once(sound(int8=is_int8))


@pytest.mark.parametrize("why", BY_HAND)
def test_a_hostile_file_is_refused_with_one_sentence(why: str) -> None:
    make, says = BY_HAND[why]
    found = outcome_of(make(), run_once)
    assert found.kind == "refused"
    assert any(each in found.sentence for each in says.split("|"))
    assert len(found.sentence) < LONGEST_SENTENCE
    assert found.sentence.isprintable()
    assert found.seconds < _MOST_SECONDS


@pytest.mark.parametrize("name", RUN)
def test_a_file_that_only_looks_hostile_is_run(name: str) -> None:
    assert outcome_of(RUN[name](), run_once).kind == "opened"


@pytest.mark.wide
def test_changed_files_are_refused_or_run_within_bounds_and_write_nothing() -> None:
    command = [sys.executable, "-m", "soak.litert", "--files", "200", "--after", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout
    assert "opened" in done.stdout


def test_a_file_that_ends_its_runtime_costs_the_check_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SENSEAPP_JOB_PROCESSES", "1")
    monkeypatch.chdir(tmp_path)
    nodes = [node("GlobalAveragePool", "x", "p"), node("Flatten", "p", "y")]
    Path("plain.onnx").write_bytes(file_of(nodes, {}, shape=("N", 3, 8, 8)))
    Path("crash.tflite").write_bytes(mutated(CRASHES))
    assert main(["check", "plain.onnx", "crash.tflite", "--data", "random", "--samples", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "plain.onnx or crash.tflite ended the process that ran it" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crash.tflite", "plain.onnx"]


@pytest.mark.parametrize("command", ["check", "analyze"])
def test_an_original_for_litert_is_refused_with_what_to_do(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SENSEAPP_JOB_PROCESSES", "0")
    monkeypatch.chdir(tmp_path)
    Path("net.tflite").write_bytes(sound())
    asked = {
        "check": ["check", "net.tflite", "net.tflite", "--data", "random"],
        "analyze": ["analyze", "--model", "auto", "--checkpoint", "net.tflite", "--data", "random", "--out", "run"],
    }
    assert main(asked[command]) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # LiteRT's own log may come before
    assert "the network that it was made of" in line
