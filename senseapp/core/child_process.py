"""Child processes that run a Python program of this package and exchange lines of strict JSON, never pickle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast


class ChildProcess:
    """A running program, which ends once ``requests``, its standard input, is closed.

    Args:
        program: arguments of Python.
        errors: file for its standard error stream; None discards it.
        environment: None: that of this process.
    """

    def __init__(
        self, *program: str, errors: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors or subprocess.DEVNULL,
            env=environment,
            cwd=Path(__file__).parents[2],
            start_new_session=True,  # Ctrl-C is for the command line alone; it then closes this
        )
        self.pid = self._process.pid
        self.requests, self.answers = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process at once; one that runs C code would not read a request to stop."""
        self._process.kill()
        self._process.wait()

    def end(self, patience_seconds: float = 0.0) -> int:
        """Close its input and return its exit status; it is killed if it does not end within so many seconds."""
        with suppress(OSError):  # what was not sent yet
            self.requests.close()
        try:
            return self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def write_line(stream: IO[bytes], message: Any) -> None:
    """Write a message; the caller flushes the stream."""
    stream.write(json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n")


def read_line(stream: IO[bytes]) -> Any:
    """Return the next message; EOFError once the stream is closed."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return json.loads(line)
