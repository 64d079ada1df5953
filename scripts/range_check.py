"""Try the package at one end of the ranges that pyproject.toml allows, with one Python.

``python -m scripts.range_check lowest --python python3.11`` makes ``.cache/range-check``, installs the package there
with each of its own requirements at its lower bound, those of ``ray`` too, and runs the quick unit tests; ``newest``
takes the newest that they allow.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PLACE = _ROOT / ".cache" / "range-check"
_UNIT = _ROOT / "tests" / "unit"
_TESTS = ("pytest>=9", "pytest-timeout>=2.4", "pytest-xdist>=3.8", "hypothesis>=6.150", "scikit-learn>=1.7")
_SOURCES = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}
_QUICK = "not (browser or peer or architectures or slow)"


def check(end: str, python: str) -> int:
    """Install the package at ``end`` of its ranges and return what the quick unit tests end with."""
    shutil.rmtree(_PLACE, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(_PLACE)], check=True)
    own = str(_PLACE / "bin" / "python")
    subprocess.run([own, "-m", "pip", "install", "--quiet", "uv"], check=True)  # pip seeks for hours among old releases
    install = [own, "-m", "uv", "pip", "install", "--quiet", "--python", own, *_sources(own)]
    install += ["--resolution", "lowest-direct" if end == "lowest" else "highest"]
    subprocess.run([*install, f"{_ROOT}[ray]", *_TESTS], check=True)
    tests = [own, "-m", "pytest", "-q", "-m", _QUICK, str(_UNIT)]
    return subprocess.run(tests, cwd=_ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode


def _sources(python: str) -> list[str]:
    """Return the options that tell uv where pip's settings look for packages; it does not read them itself."""
    found = ["--index-strategy", "unsafe-best-match"]  # all indexes are equally trusted, as they are by pip
    for setting, option in _SOURCES.items():
        named = subprocess.run(
            [python, "-m", "pip", "config", "get", f"global.{setting}"], capture_output=True, text=True, check=False
        )
        own = os.environ.get(f"PIP_{setting.upper().replace('-', '_')}") or named.stdout
        found += [word for place in own.split() for word in (option, place)]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("end", choices=("lowest", "newest"))
    parser.add_argument("--python", default=sys.executable, metavar="PROGRAM", help="that makes the environment")
    given = parser.parse_args()
    sys.exit(check(given.end, given.python))
