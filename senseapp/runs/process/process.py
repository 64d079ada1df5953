"""The app's end of a job process: starting and ending it, and messages as lines of strict JSON, never pickle."""

from __future__ import annotations

import json
import logging
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import senseapp.core.errors as known_errors
from senseapp.core.errors import ClusterFailed, ProcessLost, SenseError
from senseapp.core.process import measuring_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One message.

    Attributes:
        kind: what it is.
        body: its content, of JSON's types; records as :func:`senseapp.core.codec.encode` gives them.
    """

    kind: str
    body: Any = None


def write_line(stream: IO[bytes], kind: str, body: Any = None) -> None:
    """Send a message."""
    stream.write(json.dumps([kind, body], allow_nan=False, separators=(",", ":")).encode() + b"\n")
    stream.flush()


def read_line(stream: IO[bytes]) -> Line | None:
    """Return the next message, or None once the other side is gone."""
    text = stream.readline()
    if not text.endswith(b"\n"):
        return None
    kind, body = json.loads(text)
    return Line(kind=kind, body=body)


_log = logging.getLogger(__name__)
_ASK_SECONDS = 0.25  # how often a cancel is looked for while nothing is heard
_LEAVE_SECONDS = 2.0  # a server that is asked to end has five for everything
_HEAD_LOST_SECONDS = "20"  # Ray's own patience with a head that does not answer is a minute
_KEPT = "What was measured is kept"


def cluster_lost(status: int) -> ClusterFailed:
    """Return what to say of a process that talked to a cluster, and ended."""
    return ClusterFailed(
        f"The connection to the cluster was lost. {_KEPT}: try again once it is back, or go on on this machine alone."
    )


def process_lost(status: int) -> ProcessLost:
    """Return what to say of a process that worked on this machine, and ended with ``status``."""
    if status == -signal.SIGKILL:
        reason, advice = "was killed, most often because memory ran out", "with fewer images or a smaller input size"
    else:
        reason, advice = f"ended unexpectedly (status {status})", "with other settings if it happens again"
    return ProcessLost(f"The process that did this work {reason}. {_KEPT}: try again, {advice}.")


class JobProcess:
    """One such process.

    Args:
        lost: returns what to raise once the process has ended by itself, from its exit status (negative for a signal).
    """

    def __init__(self, lost: Callable[[int], SenseError] = process_lost) -> None:
        self.warm = threading.Event()  # set once the engine is loaded, or never will be
        self._lost_with = lost
        self._heard: queue.Queue[Line | None] = queue.Queue()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = _started(self._errors)
        threading.Thread(target=self._listen, name="senseapp-job-process", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it can be asked anything."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self._process.pid

    def ask(self, kind: str, body: Any = None) -> None:
        """Send a message.

        Raises:
            SenseError: the process has ended.
        """
        assert self._process.stdin is not None
        try:
            write_line(self._process.stdin, kind, body)
        except (OSError, ValueError) as error:  # gone, or closed by us
            raise self._lost() from error

    def hear(self, *wanted: str, progress: Callable[[str], None]) -> Line:
        """Return the next message of a wanted kind; the others are dealt with on the way.

        ``progress`` is told what begins, and several times a second "" for nothing new; it may raise. What the process
        refuses, and its loss, is raised as a SenseError; what nobody foresaw as a RuntimeError.
        """
        while True:
            try:
                line = self._heard.get(timeout=_ASK_SECONDS)
            except queue.Empty:
                progress("")  # where a cancel takes effect
                continue
            if line is None:
                self._heard.put(None)  # for whoever asks next: nothing will be heard any more
                raise self._lost()
            if line.kind in wanted:
                return line
            self._deal_with(line, progress)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._end()
        self._errors.close()

    def _deal_with(self, line: Line, progress: Callable[[str], None]) -> None:
        if line.kind == "phase":
            progress(str(line.body))
        elif line.kind == "log":
            name, level, message = line.body
            logging.getLogger(name).log(level, "%s", message)
        elif line.kind == "refused":
            name, sentence = line.body
            kind = getattr(known_errors, name, SenseError)
            raise (SenseError if kind is known_errors.InfeasibleBudget else kind)(sentence)
        else:
            raise RuntimeError(f"the process that works for the app failed:\n{line.body}")

    def _end(self) -> int:
        """Return the exit status of the process, which ends by itself once it can hear nothing more."""
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.close()
            return process.wait(_LEAVE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            return process.wait()

    def _lost(self) -> SenseError:
        status = self._end()
        if not self._errors.closed:
            self._errors.seek(0)
            said = self._errors.read()[-4000:].decode("utf-8", "replace")
            _log.error("the process that works for the app ended with status %d: %s", status, said)
        return self._lost_with(status)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            while (line := read_line(answers)) is not None:
                if line.kind == "warm":
                    self.warm.set()
                else:
                    self._heard.put(line)
        self.warm.set()
        self._heard.put(None)


def _started(errors: Any) -> subprocess.Popen[bytes]:
    environment = {"RAY_gcs_rpc_server_reconnect_timeout_s": _HEAD_LOST_SECONDS} | measuring_environment()
    return subprocess.Popen(
        [sys.executable, "-m", "senseapp.runs.process.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        cwd=Path(__file__).parents[3],
        start_new_session=True,  # Ctrl-C is for the command line alone; it then closes this
    )
