"""The app paints before torch is loaded: what a page imports must not load it."""

import subprocess
import sys

import pytest

PLAIN = (
    *("core.errors", "descriptions", "metrics", "tasks", "compressions", "records.spec", "records.measurement"),
    *("solve.methods", "formats.registry", "store.run_store", "store.run_file", "store.distiller", "server.service"),
    *("server.process.child", "server.worker", "cli.main", "views.frames.results", "views.report.document"),
    *("app.common.backend", "app.results.views", "app.schedule.panel", "app.server.serve"),
)
PROGRAM = """
import importlib, pkgutil, sys
import senseapp
for package in sys.argv[1:]:
    importlib.import_module(package)
    heavy = ["torch", "timm", "torchvision", "torch_pruning", "sklearn", "ray"]
    if not package.startswith("senseapp.app"):
        heavy.append("streamlit")
    print(package, *(name for name in heavy if name in sys.modules))
for module in pkgutil.walk_packages(senseapp.app.__path__, "senseapp.app."):
    importlib.import_module(module.name)
print("all of the app", *(name for name in heavy if name in sys.modules))
"""


@pytest.mark.slow
def test_importing_does_not_load_torch():
    """One process imports them all in turn, and says after each what is there: the first one at fault is named.

    Only the app loads streamlit.
    """
    packages = ["senseapp", *(f"senseapp.{name}" for name in PLAIN)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *packages], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*packages, "all of the app"]


WITH_A_SIZE = """
import sys
from senseapp.server.machine import load_engine
load_engine()
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
load_model(ModelSpec(library="torchvision", name="squeezenet1_1", img_size=64))
print(*(name for name in ("torch._dynamo", "sympy", "triton") if name in sys.modules))
"""


@pytest.mark.wide
@pytest.mark.slow
def test_a_network_for_a_size_of_images_is_checked_without_torchs_compiler():
    """It takes 1.5 s to load, and 150 MB of each process that measures."""
    done = subprocess.run([sys.executable, "-c", WITH_A_SIZE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
