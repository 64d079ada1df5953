"""The app paints before torch is loaded: what a page imports must not load it."""

import subprocess
import sys

import pytest

PLAIN = (
    "errors",
    "metrics",
    "tasks",
    "spec",
    "results",
    "schedule",
    "store",
    "jobs",
    "exchange",
    "export",
    "service",
    "cli",
    "ui",
)


@pytest.mark.parametrize("package", ["senseapp", *(f"senseapp.{name}" for name in PLAIN)])
def test_importing_does_not_load_torch(package):
    program = (
        f"import sys, {package}; print([name for name in ('torch', 'timm', 'torchvision') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_engine_does_not_load_streamlit():
    program = "import sys, senseapp.runs, senseapp.cli; print('streamlit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
