"""Servers of the app that tests start: on a home and an address of their own, killed and started again where asked."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.serving import free_port, wait_for_health

ROOT = Path(__file__).parents[2]
END_SECONDS = 15.0


SCRIPTED = (sys.executable, "-m", "soak.scripted_server", "--server.headless=true")
"""The app with an engine that makes up its measurements and loads no torch."""


class Server:
    """One address and one home; the process behind them may change."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        command: Sequence[str] = (sys.executable, "-m", "senseapp.app.server.serve", "--server.headless=true"),
        port_option: str = "--server.port",
        cwd: Path = ROOT,
    ) -> None:
        self.port = free_port()
        self.url = f"http://localhost:{self.port}"
        self.home = folder / "home"
        self.log = folder / "server.log"
        self._environment = (
            os.environ | {"SENSEAPP_HOME": str(self.home), "SENSEAPP_RECOMMEND_SECONDS": "0"} | dict(environment or {})
        )
        self._command = [*command, f"{port_option}={self.port}"]
        self._cwd = cwd
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=self._cwd, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        wait_for_health(self.url, self.process, self.log)

    def kill(self) -> None:
        """End it at once, as the system does when memory runs out."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self, seconds: float) -> None:
        """Ask it to end, and fail if it takes longer."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(timeout=seconds)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Start ``server``; whatever became of it, none is left at the end."""
    server.start()
    try:
        yield server
    finally:
        assert server.process is not None
        if server.process.poll() is None:
            try:
                server.terminate(END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def with_sources(folder: Path, *entry_points: str) -> Server:
    """Return a server, kept in ``folder``, for which another package has registered sources of networks.

    Each of ``entry_points`` is its line: ``name = module:OBJECT``.
    """
    installed = folder / "other-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("\n".join(["[senseapp.sources]", *entry_points, ""]))
    return Server(folder, {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))})
