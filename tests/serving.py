"""What every test that starts a server needs: a port of its own, and to know when it answers."""

import random
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

START_SECONDS = 90.0


_PORTS = range(20_000, 32_000)
"""Below those that systems give to outgoing connections: none takes the port before the server does."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    drawn = random.SystemRandom()  # seeded numbers would be the same in each worker
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := drawn.choice(_PORTS)))
            except OSError:
                continue
            return port


def wait_for_health(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the app at ``url`` answers.

    Raises:
        RuntimeError: it does not in time, or has ended; with what it wrote to ``log``.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"The app did not start:\n{log.read_text()}")
