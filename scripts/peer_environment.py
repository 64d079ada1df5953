"""Environments for other tools that ours is compared with; they share this one's torch, and nothing else gets in.

``python scripts/peer_environment.py fasterai`` makes ``.cache/peers/fasterai`` if need be and prints its Python.
What a peer is made of is pinned in ``tests/peers/<name>.txt``, and nothing that is not there is installed. A ``.pth``
file lets it see this environment's packages after its own, so that torch (gigabytes) is not installed twice and both
sides compute with the same one.
"""

import fcntl
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PEERS = _ROOT / ".cache" / "peers"
_PINS = _ROOT / "tests" / "peers"


class PeerFailed(RuntimeError):
    """The environment of another tool could not be made."""


def ensure(name: str) -> Path:
    """Return the Python of the environment called ``name``, which is made first if it is missing or out of date.

    Two processes may ask at the same time; one makes it and the other waits.

    Raises:
        PeerFailed: there are no pins of that name, or they cannot be installed; with what pip said.
    """
    pins = _PINS / f"{name}.txt"
    if not pins.is_file():
        known = ", ".join(sorted(path.stem for path in _PINS.glob("*.txt")))
        raise PeerFailed(f"There is no peer called {name}; there are {known}.")
    place = _PEERS / name
    python = place / "bin" / "python"
    mark = place / ".installed"
    wanted = f"{sysconfig.get_path('purelib')}\n{pins.read_text()}"
    _PEERS.mkdir(parents=True, exist_ok=True)
    with (_PEERS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        if not (mark.is_file() and mark.read_text() == wanted):
            shutil.rmtree(place, ignore_errors=True)
            make_environment(place)
            install(python, "--requirement", str(pins))
            mark.write_text(wanted)
    return python


def make_environment(place: Path) -> None:
    """Make an environment that sees this one's packages after its own."""
    venv.create(place, with_pip=False)  # ours installs into it
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")


def install(python: Path, *what: str) -> None:
    """Install what pip calls ``what``, and nothing that it requires, into the environment of ``python``.

    Raises:
        PeerFailed: it cannot be installed; with what pip said.
    """
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    pip.append("--no-compile")  # little of it is ever imported
    done = subprocess.run([*pip, "--no-deps", *what], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerFailed(f"pip could not install {' '.join(what)}:\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    print(ensure(sys.argv[1] if len(sys.argv) > 1 else "fasterai"))
