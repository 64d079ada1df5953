"""What every test that starts a server needs: a port of its own, and to know when it answers."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from pathlib import Path

START_SECONDS = 90.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
