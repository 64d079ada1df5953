import subprocess
import sys

import pytest


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize(("engine", "kills"), [("fake", 1), ("real", 2)])
def test_a_server_killed_at_random_moments_loses_nothing(engine, kills):
    soak = [sys.executable, "-m", "soak.kills_in_measuring", str(kills), "--engine", engine]
    soak += ["--short"] if engine == "real" else []
    finished = subprocess.run(soak, capture_output=True, text=True, check=False, timeout=240)
    assert finished.returncode == 0, finished.stderr
    assert f"{kills} kills of the {engine} engine" in finished.stdout
    assert "equal ones that were left alone" in finished.stdout
