from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_server_killed_at_random_moments_loses_nothing(tmp_path):
    soak = [sys.executable, "-m", "tests.kill_soak", str(tmp_path), "8"]
    finished = subprocess.run(soak, capture_output=True, text=True, check=False, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert "8 kills" in finished.stdout
    assert "the result is the same" in finished.stdout
