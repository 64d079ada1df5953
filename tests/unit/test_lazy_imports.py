"""The app paints before torch is loaded: what a page imports must not load it."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("package", ["senseapp", *(f"senseapp.{name}" for name in PLAIN)])
def test_importing_does_not_load_torch(package):
    program = (
        f"import sys, {package}; print([name for name in ('torch', 'timm', 'torchvision') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_engine_does_not_load_streamlit():
    program = "import sys, senseapp.runs.service, senseapp.cli.main; print('streamlit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
