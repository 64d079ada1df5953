"""Benchmarks on a device: every tool is told of it, and clocks wait for it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.__main__ import COLUMNS, Row, Runs, compare, line, rows, run
from benchmarks.cases import clock


@pytest.mark.parametrize("tool", ["fasterai", "ours", "floor"])
def test_every_tool_runs_on_the_device_that_is_asked_for(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def noted(arguments: list[str], **_: object) -> SimpleNamespace:
        asked.append(arguments)
        return SimpleNamespace(stdout='{"seconds": 1.5}')

    monkeypatch.setattr(subprocess, "run", noted)
    row = Row("resnet18", "sparsity", 5, (tool,))
    assert run(tool, row, Path("peer"), images=4, device="cuda:1") == {"seconds": 1.5}
    assert asked[0][-6:] == [tool, "resnet18", "sparsity", "5", "4", "cuda:1"]


def test_levels_apart_are_timed_where_they_go_together() -> None:
    several = {device: next(row for row in rows("resnet18", device) if row.levels == 5) for device in ("cpu", "cuda")}
    assert "ours-apart" not in several["cpu"].tools
    assert set(several["cuda"].tools) == {*several["cpu"].tools, "ours-apart"}
    seconds = {"fasterai": [60.0], "ours": [2.0], "ours-apart": [5.0], "quick": [1.0], "floor": [4.0]}
    cells = [cell.strip() for cell in line(several["cuda"], Runs(seconds=seconds)).strip("|").split("|")]
    told = dict(zip(COLUMNS, cells, strict=True))
    assert (told["ours ×"], told["together ×"], told["ours / floor"]) == ("30.00", "2.50", "0.50")


def test_a_clock_is_read_once_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    assert clock(torch.device("cpu"))() > 0
    assert waited == []
    assert clock(torch.device("cuda:1"))() > 0
    assert waited == [torch.device("cuda:1")]


def test_a_row_goes_on_where_fasterai_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(arguments: list[str], **_: object) -> SimpleNamespace:
        if "fasterai" in arguments:
            raise subprocess.CalledProcessError(1, arguments, stderr="Traceback\nRuntimeError: shape\n")
        return SimpleNamespace(stdout='{"seconds": 1.5, "peak_bytes": 1, "deltas": {}}')

    monkeypatch.setattr(subprocess, "run", answered)
    one = compare(Row("vit_tiny", "sparsity", 1, ("fasterai", "ours")), 2, Path("peer"), None, "cpu")
    five = Row("vit_tiny", "sparsity", 5, ("fasterai", "ours"))
    for runs in (one, compare(five, 1, Path("peer"), one, "cpu")):
        assert runs.failed == "RuntimeError: shape"
        cells = [cell.strip() for cell in line(five, runs).strip("|").split("|")]
        told = dict(zip(COLUMNS, cells, strict=True))
        assert (told["fasterai s"], told["ours s"], told["ours ×"]) == ("fails", "1.5", "–")
