"""Install a wheel where nothing of the clone is in reach, and use it: ``python -m scripts.installed_wheel WHEEL``.

With the Python that runs this, and the newest packages that the wheel allows: its commands answer, the demo is
measured, and the app serves its first page.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

_PATIENCE = 120.0  # seconds until a server that has just been installed answers


def use(wheel: Path, place: Path) -> None:
    """Install ``wheel`` into ``place`` and run its command from there."""
    venv.create(place, with_pip=True)
    command, home = str(place / "bin" / "senseapp"), os.environ | {"SENSEAPP_HOME": str(place / "home")}
    subprocess.run([place / "bin" / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    subprocess.run([command, "--version"], check=True, cwd=place)
    demo = ("analyze", "--model", "demo", "--data", "demo", "--mode", "quick", "--out", "run")
    subprocess.run([command, *demo], check=True, cwd=place, env=home)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    server = subprocess.Popen([command, "serve", "--port", port], cwd=place, env=home)
    try:
        _answer(f"http://localhost:{port}/")
    finally:
        server.terminate()
        server.wait()


def _answer(url: str) -> None:
    started = time.monotonic()
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as page:
                print(f"{url} answers with {page.status}")
                return
        except urllib.error.URLError:
            if time.monotonic() - started > _PATIENCE:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        use(Path(sys.argv[1]).resolve(), Path(folder))
