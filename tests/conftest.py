"""What holds for every test: an environment of its own, known seeds, one ONNX registry, and an order of work.

Whoever runs the tests may have settings of the app in their environment, and an app at work in their home: tests read
none of the former and never touch the latter.
"""

import contextlib
import functools
import gc
import importlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from senseapp.data.picture_process import DECODERS
from senseapp.server import machine
from senseapp.store import database
from tests import cases
from tests.scheduling import LongestFirst, rank

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # read when torch is loaded; the workers share the cores
_FULL_COLLECTION = 100  # collections of the middle generation before one of all objects, 10 by default: 4 % of the time
_HOME = tempfile.mkdtemp(prefix="senseapp-tests-")  # of this worker
for _name in [name for name in os.environ if name.startswith(("SENSEAPP_", "STREAMLIT_"))]:
    del os.environ[_name]
os.environ |= dict.fromkeys(_THREADS, "1") | {"SENSEAPP_HOME": _HOME}
os.fsync = lambda _: None  # tests outlive no power cut; waiting for disks took a twentieth of their time
database._SYNCHRONOUS = "OFF"
machine.share_left = lambda processors: 1.0  # a quiet machine: no prediction depends on the other tests


def pytest_configure(config: pytest.Config) -> None:
    """Tell the tests whether all are asked for, and let no example of hypothesis fail because the machine is busy."""
    cases.NIGHTLY = not config.getoption("markexpr")
    slow = [HealthCheck.too_slow]
    settings.register_profile("any speed", deadline=None, max_examples=cases.examples(50), suppress_health_check=slow)
    settings.load_profile("any speed")


def pytest_unconfigure() -> None:
    """Remove the home of this worker's tests."""
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed the generators that a test may draw from; torch's only where it has been loaded, and to its end.

    ``torch.manual_seed`` would write down its caller's stack for each kind of device, in up to a millisecond.
    """
    random.seed(0)
    np.random.seed(0)
    if hasattr(sys.modules.get("torch"), "default_generator"):  # a page may be loading it in a thread just now
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _one_onnx_registry() -> None:
    """Let networks be written with the operators that were listed for the first: torch lists them anew, in .4 s."""
    exporter = sys.modules.get("torch.onnx._internal.exporter._registration")
    if exporter is not None and not hasattr(exporter.ONNXRegistry.from_torchlib, "cache_info"):
        exporter.ONNXRegistry.from_torchlib = staticmethod(functools.cache(exporter.ONNXRegistry.from_torchlib))
    export = sys.modules.get("torch._export.utils")
    if hasattr(export, "_materialize_cpp_cia_ops") and not hasattr(export._materialize_cpp_cia_ops, "cache_info"):
        export._materialize_cpp_cia_ops = functools.cache(export._materialize_cpp_cia_ops)


@pytest.fixture(scope="module", autouse=True)
def _kept_exports() -> None:
    """Export each network to ONNX once, in whatever test: torch traces it for seconds."""
    write = sys.modules.get("senseapp.reconstruct.write")
    if hasattr(write, "onnx_program") and not hasattr(write.onnx_program, "__wrapped__"):
        from tests.kept_exports import kept  # loads torch

        write.onnx_program = kept(write.onnx_program, lambda: (write._export, sys.modules["torch.onnx"].export))
    template = sys.modules.get("senseapp.runtimes.onnxruntime.operations")
    if hasattr(template, "onnx_program") and template.onnx_program is getattr(write.onnx_program, "__wrapped__", None):
        template.onnx_program = write.onnx_program


@pytest.fixture(scope="session", autouse=True)
def _kept_decoders() -> Iterator[None]:
    """Keep the processes that decode pictures from one test to the next: to start one takes a fifth of a second."""
    usual = DECODERS.rest
    DECODERS.rest = lambda kept=4: usual(kept)  # type: ignore[method-assign]
    yield
    DECODERS.rest = usual  # type: ignore[method-assign]
    DECODERS.rest(0)


@pytest.fixture(scope="module")
def quick_times() -> Iterator[None]:
    """Time files by few calls: for tests of what is done with the times, of which no figure is judged."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_SECONDS": 0.02, "_OPENINGS": 2, "_MORE_OPENINGS": 0, "_TURNS_OF_A_ROUND": 1}.items():
            patch.setattr(f"senseapp.prove.file_times.{name}", value)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Load the test modules without garbage collection, and exempt what is loaded then from later collections."""
    gc.disable()
    try:
        _compile_a_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], _FULL_COLLECTION)
        gc.enable()


def _compile_a_share(config: pytest.Config) -> None:
    """Import every n-th test module in each of n workers: rewriting asserts costs more than loading the bytecode.

    In a fresh clone each worker would otherwise rewrite every module. Collection reports a module that fails.
    """
    if not hasattr(config, "workerinput") or config.args != config.getini("testpaths"):
        return
    worker, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    ignored = tuple(str(config.rootpath / path) for path in config.getoption("ignore") or ())
    for file in sorted((config.rootpath / "tests").rglob("test_*.py"))[worker::workers]:
        if not str(file).startswith(ignored):
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest work first."""
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst | None:
    """Replace ``--dist loadfile`` by the project's own kind of it; other kinds stay as they are."""
    return LongestFirst(config, log) if config.option.dist == "loadfile" else None
