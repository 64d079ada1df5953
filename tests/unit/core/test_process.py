"""Memory and threads of processes that measure, what one piece of work keeps for the next, and quiet moments."""

import gc
import os
import platform
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from senseapp.compressions import QuantizationConfig
from senseapp.core import process as quiet_module
from senseapp.core.codec import dumps
from senseapp.core.process import PROCESS_CACHE, QUIET_FILE, ProcessCache, at_work, measuring_environment, quiet
from senseapp.measure.histograms import histogram_of
from senseapp.measure.session import Session
from senseapp.records.measurement import RunResult
from senseapp.records.spec import HistogramSpec, RunSpec, SensitivitySpec
from senseapp.server.process.processes import environment_of_jobs
from tests.cases import first_of

ROOT = Path(__file__).resolve().parents[3]
PASSES = 20
SETTINGS = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
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
STARTS = {"command line": "runpy.run_module('senseapp', run_name='__main__')", "app": "serve.serve([])"}
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
@pytest.mark.parametrize("start", first_of(STARTS))
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
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    environment = environment_of_jobs("temporary")
    assert [environment[name] for name in SETTINGS] == [*MEMORY, "passive", "3000"]
    assert environment["PATH"] == os.environ["PATH"]


def test_one_that_has_the_machine_to_itself_lets_threads_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    environment = measuring_environment(beside_others=False)
    assert [environment.get(name) for name in SETTINGS] == [*MEMORY, None, None]


DEMO = RunSpec(
    sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(4.0,), num_samples=24, mode="quick")
)


class Thing:
    """Something that can be gone."""


@pytest.fixture
def leftovers() -> Iterator[ProcessCache]:
    found = ProcessCache()
    found.keep()
    yield found
    found.clear()


@pytest.fixture
def kept() -> Iterator[ProcessCache]:
    """This process's own, as in a process that works for the app."""
    PROCESS_CACHE.keep()
    yield PROCESS_CACHE
    PROCESS_CACHE.clear()


@pytest.fixture(scope="module")
def result() -> RunResult:
    return Session.open(DEMO).result(())


def test_nothing_stays_unless_it_is_to_be_kept() -> None:
    leftovers = ProcessCache()
    leftovers.leave("a", Thing())
    assert leftovers.take("a") is None


def test_a_thing_is_taken_once_and_by_its_name(leftovers: ProcessCache) -> None:
    thing = Thing()
    leftovers.leave("a", thing)
    assert leftovers.take("a") is thing
    assert leftovers.take("a") is None


@pytest.mark.parametrize(
    "let_go",
    [lambda left: left.take("b"), lambda left: left.drop(), lambda left: left.clear()],
    ids=["other", "drop", "clear"],
)
def test_what_nobody_wants_is_let_go_of(leftovers: ProcessCache, let_go) -> None:
    thing = Thing()
    watched = weakref.ref(thing)
    leftovers.leave("a", thing)
    del thing
    let_go(leftovers)
    gc.collect()
    assert watched() is None
    assert leftovers.take("a") is None


@pytest.mark.slow
def test_histograms_after_each_other_load_once_and_say_the_same(kept: ProcessCache, result: RunResult) -> None:
    first, second = (layer.name for layer in result.profile.layers[:2])
    asked = [
        HistogramSpec(layer=second),
        HistogramSpec(layer=second, tensor="activations", per_channel=True),
        HistogramSpec(layer=first, fold=True),
        HistogramSpec(layer=second, tensor="activations", objective="loss"),
        HistogramSpec(layer=second),
        HistogramSpec(layer=second, num_images=16),
    ]
    loads = []
    found = []
    for spec in asked:
        phases: list[str] = []
        found.append(histogram_of(result, spec, progress=phases.append))
        loads.append("Loading the model" in phases)
    assert loads == [True, False, False, False, False, True]  # fewer images are others
    kept.clear()
    assert [dumps(each) for each in found] == [dumps(histogram_of(result, spec)) for spec in asked]  # NaN included


def test_what_failed_leaves_nothing(kept: ProcessCache, result: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = HistogramSpec(layer=result.profile.layers[0].name)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("in the middle of a pass")

    with monkeypatch.context() as patch:
        patch.setattr("senseapp.measure.histograms.quantization_histograms", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            histogram_of(result, spec)
    phases: list[str] = []
    histogram_of(result, spec, progress=phases.append)
    assert "Loading the model" in phases


WORKER = """
import time
from senseapp.core.process import at_work, pause
with at_work():
    print("begins", flush=True)
    while True:
        print(time.monotonic(), flush=True)
        time.sleep(PACE)
        pause()
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Starts a process at work that pauses every so many seconds."""
    monkeypatch.setenv(QUIET_FILE, str(tmp_path / "quiet"))
    started = []

    def start(pace: float) -> subprocess.Popen:
        script = WORKER.replace("PACE", str(pace))
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "begins\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_who_works_does_nothing_while_something_is_timed(worker):
    process = worker(0.005)
    with at_work():
        with quiet():
            begun = time.monotonic()
            time.sleep(0.3)
            ended = time.monotonic()
        time.sleep(0.1)
    process.kill()
    moments = [float(line) for line in process.stdout]
    assert min(moments) < begun
    assert max(moments) > ended  # it goes on
    assert not [moment for moment in moments if begun < moment < ended]


@pytest.mark.slow
def test_a_timing_does_not_wait_for_ever(worker, monkeypatch, caplog):
    process = worker(60)
    monkeypatch.setattr(quiet_module, "_WAIT_SECONDS", 0.2)
    with at_work(), quiet():
        pass
    assert "beside other work" in caplog.text
    process.kill()
    process.wait()
    caplog.clear()
    with at_work(), quiet():
        pass
    assert not caplog.text  # the locks of a process that ended are free
