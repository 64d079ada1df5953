"""Try the package at one end of the ranges that pyproject.toml allows, with one Python.

``python -m scripts.range_check lowest --python python3.11`` makes ``.cache/range-check``, installs the package there
with each requirement at its lower bound, and runs the quick unit tests; ``newest`` takes the newest that pip allows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

_ROOT = Path(__file__).resolve().parent.parent
_PLACE = _ROOT / ".cache" / "range-check"
_UNIT = _ROOT / "tests" / "unit"
_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
_WITHOUT = ("test_cluster_plan.py", "test_engine_level_batching.py", "test_pictures_of_the_app.py")  # ray, a browser
_QUICK = "not (browser or peer or architectures or slow)"


def lower_bounds() -> list[str]:
    """Return one pin for each requirement of the package, at its lower bound."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    wanted = map(Requirement, project["dependencies"])
    return [
        f"{one.name}=={part.version}{f'; {one.marker}' if one.marker else ''}"
        for one in wanted
        for part in one.specifier
        if part.operator == ">="
    ]


def check(end: str, python: str) -> int:
    """Install the package at ``end`` of its ranges and return what the quick unit tests end with."""
    shutil.rmtree(_PLACE, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(_PLACE)], check=True)
    own = str(_PLACE / "bin" / "python")
    pins = lower_bounds() if end == "lowest" else ["--upgrade", "--upgrade-strategy", "eager"]
    subprocess.run([own, "-m", "pip", "install", "--quiet", str(_ROOT), *_TESTS, *pins], check=True)
    left_out = [word for name in _WITHOUT for word in ("--ignore", str((_UNIT / name).resolve(strict=True)))]
    tests = [own, "-m", "pytest", "-q", "-m", _QUICK, *left_out, str(_UNIT)]
    return subprocess.run(tests, cwd=_ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("end", choices=("lowest", "newest"))
    parser.add_argument("--python", default=sys.executable, metavar="PROGRAM", help="that makes the environment")
    given = parser.parse_args()
    sys.exit(check(given.end, given.python))
