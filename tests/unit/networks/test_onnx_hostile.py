"""Hostile and damaged ONNX files: refused with one sentence, or opened within bounds; ``soak.onnx`` is longer."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from senseapp.core.errors import InvalidCheckpoint, UnsupportedModel
from senseapp.networks.onnx.open import open_onnx
from tests.hostile_onnx import BY_HAND, RUN


@pytest.mark.parametrize("why", BY_HAND)
def test_a_hostile_file_is_refused_at_once(why: str) -> None:
    make, says = BY_HAND[why]
    content, before = make(), time.process_time()
    with pytest.raises((InvalidCheckpoint, UnsupportedModel), match=says) as refusal:
        open_onnx(content)
    assert time.process_time() - before < 20
    assert len(str(refusal.value)) < 1000
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", RUN)
def test_a_file_that_only_looks_hostile_is_a_network(name: str) -> None:
    before = time.process_time()
    assert open_onnx(RUN[name]()).difference < 1e-5
    assert time.process_time() - before < 20


@pytest.mark.wide
def test_changed_files_are_refused_or_opened_within_bounds_and_write_nothing() -> None:
    command = [sys.executable, "-m", "soak.onnx", "--files", "20", "--after", "1000000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout
    assert "opened" in done.stdout
