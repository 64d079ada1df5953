"""Processes that measure keep freed memory until it is given back, and their idle threads soon sleep."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from senseapp.core.process import measuring_environment
from senseapp.server.process import processes

ROOT = Path(__file__).resolve().parents[2]
PASSES = 20
SETTINGS = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
)
MEMORY = ["1", "1073741824", "2147483647"]

# In a thread, blocks of 48 MiB are filled and freed, as a pass does with its activations; prints how many page faults
# that takes, and the pages that the process holds before and after it gives freed memory back.
FAULTS = f"""
import ctypes, resource, threading
from senseapp.core.process import give_back_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def passes():
    for _ in range({PASSES}):
        block = libc.malloc(48 << 20)
        libc.memset(block, 1, 48 << 20)
        libc.free(block)

def resident():
    return int(open("/proc/self/statm").read().split()[1])

before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
worker = threading.Thread(target=passes)
worker.start()
worker.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, resident())
give_back_freed_memory()
print(resident())
"""

# What each start does before it hands over to the command or to the server; prints the settings that torch would find.
STARTS = {
    "command line": "runpy.run_module('senseapp', run_name='__main__')",
    "app": "serve.serve([])",
}
START = """
import os, runpy, sys
from unittest import mock
import senseapp.cli.main as cli, senseapp.app.server.serve as serve
assert "torch" not in sys.modules
with mock.patch.object(cli, "main", return_value=0), mock.patch.object(serve, "application"):
    try:
        {call}
    except SystemExit as end:
        assert not end.code
print(*map(os.environ.get, {settings}))
"""


def without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in SETTINGS}


def run(program: str, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc reads what to do with freed memory")
def test_pages_are_faulted_in_once_and_stay_until_they_are_given_back() -> None:
    usual, _, _ = map(int, run(FAULTS, without_settings()))
    with mock.patch.dict(os.environ, without_settings(), clear=True):
        kept, held, left = map(int, run(FAULTS, measuring_environment()))
    assert kept <= usual / (PASSES / 2)  # the first block is faulted in, the others reuse it
    assert held - left > 0.9 * (48 << 20) / 4096


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_each_start_makes_the_settings_before_torch_is_loaded(start: str) -> None:
    found = run(START.format(call=STARTS[start], settings=SETTINGS), without_settings())
    assert found == [*MEMORY, "passive", "3000"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"OMP_WAIT_POLICY": "active"}, [*MEMORY, "active", None]),
        ({"GOMP_SPINCOUNT": "7"}, [*MEMORY, "passive", "7"]),
        ({"MALLOC_ARENA_MAX": "2"}, ["2", *MEMORY[1:], "passive", "3000"]),
    ],
)
def test_a_setting_of_the_environment_stays(given: dict[str, str], expected: list[str | None]) -> None:
    with mock.patch.dict(os.environ, without_settings() | given, clear=True):
        environment = measuring_environment()
    assert [environment.get(name) for name in SETTINGS] == expected


def test_a_process_that_works_for_the_app_starts_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    started = mock.Mock()
    monkeypatch.setattr(processes.subprocess, "Popen", started)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    processes._started(None)
    environment = started.call_args.kwargs["env"]
    assert [environment[name] for name in SETTINGS] == [*MEMORY, "passive", "3000"]
    assert environment["PATH"] == os.environ["PATH"]


def test_one_that_has_the_machine_to_itself_lets_threads_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    environment = measuring_environment(beside_others=False)
    assert [environment.get(name) for name in SETTINGS] == [*MEMORY, None, None]
