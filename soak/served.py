"""A server of its own for a soak, and what it holds: memory, threads, open files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.serving import free_port, wait_for_health

ROOT = Path(__file__).parents[1]
_SHOWN_CHARACTERS = 6000  # of the log, when something broke
MB = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a server and the processes that work for it hold at one moment.

    Attributes:
        memory_bytes: of its own, without pages of files.
        threads: of the system.
        files: open files, without connections.
    """

    memory_bytes: int
    threads: int
    files: int

    def __str__(self) -> str:
        return f"{self.memory_bytes / MB:.0f} MB, {self.threads} threads, {self.files} files"


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running server."""

    url: str
    home: Path
    process: psutil.Process

    def held(self) -> Held:
        """Return what it holds now."""
        processes = [self.process, *self.process.children(recursive=True)]
        memory = [process.memory_info() for process in processes]
        return Held(
            memory_bytes=sum(one.rss - one.shared for one in memory),
            threads=sum(process.num_threads() for process in processes),
            files=sum(len(process.open_files()) for process in processes),
        )

    def log(self) -> str:
        """Return what it has logged."""
        return (self.home / "server.log").read_text()


def health_seconds(url: str) -> float:
    """Return how long a server takes to say that it is well."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"{url}/_stcore/health", timeout=60) as answer:
        assert answer.read() == b"ok"
    return time.perf_counter() - began


class Peaks:
    """The most memory that any process of a server takes, beyond what one of its kind took at first.

    The kind is the module that a process runs: pages, questions, pictures. One that was not there at first counts from
    its first moment on.
    """

    def __init__(self, server: Served) -> None:
        self._server = server
        self._before = self._now()
        self.grown_bytes: dict[str, int] = {}

    def look(self) -> None:
        """Look once more; to be called some times a second."""
        for kind, memory in self._now().items():
            self._before.setdefault(kind, memory)
            self.grown_bytes[kind] = max(self.grown_bytes.get(kind, 0), memory - self._before[kind])

    def _now(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for process in (self._server.process, *self._server.process.children(recursive=True)):
            with suppress(psutil.Error):  # it has ended
                memory = process.memory_info()
                kind = next((part for part in process.cmdline() if part.startswith(("senseapp.", "tests."))), "other")
                found[kind] = max(found.get(kind, 0), memory.rss - memory.shared)
        return found


@contextmanager
def served(home: Path, *, module: str = "senseapp.app.server.serve", **settings: str) -> Iterator[Served]:
    """Start the app on a free port, with ``settings`` as environment variables, and end it after the body."""
    port = free_port()
    home.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"SENSEAPP_HOME": str(home), **settings}
    command = [sys.executable, "-m", module, f"--server.port={port}", "--server.address=127.0.0.1"]
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for_health(url, server, home / "server.log")
        yield Served(url=url, home=home, process=psutil.Process(server.pid))
    except BaseException:
        sys.stderr.write((home / "server.log").read_text()[-_SHOWN_CHARACTERS:])
        raise
    finally:
        server.terminate()
        server.wait(timeout=30)
