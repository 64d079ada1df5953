"""The app paints before torch is loaded: what a page imports must not load it."""

import subprocess
import sys

PLAIN = (
    "core.errors",
    "metrics",
    "tasks",
    "compressions",
    "records.spec",
    "records.measurement",
    "schedules.methods",
    "schedules.export.registry",
    "store.run_store",
    "store.run_file_reading",
    "store.distiller_reading",
    "runs.service",
    "runs.process.child",
    "runs.worker",
    "cli.main",
    "app.common.backend",
    "app.results.views",
    "app.schedule.panel",
    "app.server.serve",
)


def test_importing_does_not_load_torch():
    """One process imports them all in turn, and says after each what is there: the first one at fault is named."""
    program = """
import importlib, sys
for package in sys.argv[1:]:
    importlib.import_module(package)
    print(package, *(name for name in ("torch", "timm", "torchvision") if name in sys.modules))
"""
    packages = ["senseapp", *(f"senseapp.{name}" for name in PLAIN)]
    done = subprocess.run([sys.executable, "-c", program, *packages], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == packages


def test_importing_the_engine_does_not_load_streamlit():
    program = "import sys, senseapp.runs.service, senseapp.cli.main; print('streamlit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
