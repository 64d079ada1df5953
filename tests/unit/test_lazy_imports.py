"""The app paints before torch is loaded: what a page imports must not load it."""

import subprocess
import sys

import pytest

PLAIN = (
    "core.errors",
    "descriptions",
    "metrics",
    "tasks",
    "compressions",
    "records.spec",
    "records.measurement",
    "solve.methods",
    "formats.registry",
    "store.run_store",
    "store.run_file",
    "store.distiller",
    "server.service",
    "server.process.child",
    "server.worker",
    "cli.main",
    "views.frames.results",
    "views.report.document",
    "app.common.backend",
    "app.results.views",
    "app.schedule.panel",
    "app.server.serve",
)
PROGRAM = """
import importlib, pkgutil, sys
import senseapp
for package in sys.argv[1:]:
    importlib.import_module(package)
    heavy = ["torch", "timm", "torchvision", "torch_pruning", "sklearn"]
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
