"""The app paints before torch has loaded: nothing that a page imports may import it."""

import subprocess
import sys

import pytest

PROGRAM = """
import pkgutil, sys
import senseapp.app
for module in pkgutil.walk_packages(senseapp.app.__path__, "senseapp.app."):
    __import__(module.name)
heavy = {"torch", "timm", "torchvision", "torch_pruning", "sklearn"} & set(sys.modules)
print(sorted(heavy))
"""


@pytest.mark.slow
def test_no_module_of_the_interface_imports_torch() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
