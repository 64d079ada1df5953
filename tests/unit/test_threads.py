"""Threads that wait soon sleep, in the app as on the command line, unless the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What the module sets before it hands over to the server or to the command, and what torch's threads then read.
PROGRAM = """
import os, sys
from unittest import mock
import senseapp.cli, senseapp.ui.serve as serve
assert "torch" not in sys.modules
with mock.patch.object({owner}, "{name}", side_effect=SystemExit(0)):
    try:
        {call}
    except SystemExit:
        pass
print(os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
"""
STARTS = {
    "app": {"owner": "serve", "name": "application", "call": "serve.serve([])"},
    "command line": {
        "owner": "senseapp.cli",
        "name": "main",
        "call": "import runpy; runpy.run_module('senseapp', run_name='__main__')",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["passive", "3000"]),
        ({"OMP_WAIT_POLICY": "active"}, ["active", "None"]),
        ({"GOMP_SPINCOUNT": "7"}, ["passive", "7"]),
    ],
)
@pytest.mark.parametrize("start", STARTS)
def test_each_start_sets_the_policy_before_torch_is_loaded(
    start: str, given: dict[str, str], expected: list[str]
) -> None:
    inherited = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    program = PROGRAM.format(**STARTS[start])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=inherited | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == expected
