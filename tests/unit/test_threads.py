"""Threads that wait for each other sleep, in the app as on the command line, unless the environment says otherwise."""

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
print(os.environ.get("OMP_WAIT_POLICY"))
"""
STARTS = {
    "app": {"owner": "serve", "name": "application", "call": "serve.serve([])"},
    "command line": {
        "owner": "senseapp.cli",
        "name": "main",
        "call": "import runpy; runpy.run_module('senseapp', run_name='__main__')",
    },
}


@pytest.mark.parametrize(("given", "expected"), [(None, "passive"), ("active", "active")])
@pytest.mark.parametrize("start", STARTS)
def test_each_start_sets_the_policy_before_torch_is_loaded(start: str, given: str | None, expected: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    if given:
        environment["OMP_WAIT_POLICY"] = given
    program = PROGRAM.format(**STARTS[start])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected]
