"""Install a wheel where nothing of the clone is in reach, and use it: ``python -m scripts.installed_wheel WHEEL``.

With the Python that runs this, and the newest packages that the wheel allows: its commands answer, the demo is
measured, and the app serves its first page.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

from tests.serving import free_port, wait_for_health


def use(wheel: Path, place: Path) -> None:
    """Install ``wheel`` into ``place`` and run its command from there."""
    venv.create(place, with_pip=True)
    command, home = str(place / "bin" / "senseapp"), os.environ | {"SENSEAPP_HOME": str(place / "home")}
    subprocess.run([place / "bin" / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    subprocess.run([command, "--version"], check=True, cwd=place)
    demo = ("analyze", "--model", "demo", "--data", "demo", "--mode", "quick", "--out", "run")
    subprocess.run([command, *demo], check=True, cwd=place, env=home)
    port, log = free_port(), place / "server.log"
    url, serve = f"http://localhost:{port}", [command, "serve", "--port", str(port)]
    with log.open("wb") as written:
        server = subprocess.Popen(serve, cwd=place, env=home, stdout=written, stderr=subprocess.STDOUT)
    try:
        wait_for_health(url, server, log)
        with urllib.request.urlopen(url, timeout=10) as page:
            print(f"{url} answers with {page.status}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        use(Path(sys.argv[1]).resolve(), Path(folder))
