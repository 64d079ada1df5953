"""A session on a cluster, as the service uses it: a process of its own does the asking, see ``child.py``."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import senseapp.errors as known_errors
from senseapp.distributed.messages import Line, read_line, write_line
from senseapp.errors import ClusterFailed, SenseError
from senseapp.results import LayerMeasurement, ModelProfile, SensitivityResult
from senseapp.spec import RunSpec
from senseapp.spec.codec import decode, encode

__all__ = ["ClusterSession"]

_log = logging.getLogger(__name__)
_ASK_SECONDS = 1.0  # how often a cancel is looked for while nothing is heard
_LEAVE_SECONDS = 5.0
_HEAD_LOST_SECONDS = "20"  # Ray's own patience with a head that does not answer is a minute
_LOST = (
    "The connection to the cluster was lost. What was measured is kept: try again once it is back, or go on on this "
    "machine alone."
)


class ClusterSession:
    """One run on a cluster.

    Args:
        spec: the settings.
        address: of the cluster.
        data_roots: folders that images may be read from; empty allows any.
        progress: is told what is being done, at least once a second; may raise to stop the run.
        earlier: of the attempt that is resumed.
        find_alike: asked for an earlier run by a hash over everything that decides this one's numbers.

    Raises:
        ClusterFailed: Ray is not installed, the cluster cannot be reached, or it was lost.
        SenseError: as for a session on this machine.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        address: str,
        data_roots: tuple[Path, ...],
        progress: Callable[[str], None],
        earlier: SensitivityResult | None,
        find_alike: Callable[[str], SensitivityResult | None],
    ) -> None:
        self._progress = progress
        self._find_alike = find_alike
        self._phase = "Joining the cluster"
        self._heard: queue.Queue[Line | None] = queue.Queue()
        self._log_file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = _started(self._log_file)
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self._ask(
                "open",
                {
                    "spec": encode(spec),
                    "address": address,
                    "data_roots": [str(root) for root in data_roots],
                    "earlier": None if earlier is None else encode(earlier),
                },
            )
            opened = self._hear("opened").body
        except BaseException:
            self.close()
            raise
        self._head = decode(opened["head"], SensitivityResult)
        self._reusable = tuple(decode(item, LayerMeasurement) for item in opened["reusable"])
        self._predicted_seconds = float(opened["predicted_seconds"])
        self.targets: int = opened["targets"]

    @property
    def profile(self) -> ModelProfile:
        """The model."""
        return self._head.profile

    def predicted_seconds(self) -> float:
        """Return the simulated time of the plan."""
        return self._predicted_seconds

    def estimates(self) -> Iterator[LayerMeasurement]:
        """Yield the quick scan's estimates."""
        yield from self._stream("estimates", None)

    def reusable(self) -> tuple[LayerMeasurement, ...]:
        """Return the measurements of an earlier run of the same."""
        return self._reusable

    def measure(self, done: Sequence[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        """Yield what ``done`` lacks, as the workers find it."""
        yield from self._stream("measure", [encode(item) for item in done])

    def result(
        self,
        measurements: Sequence[LayerMeasurement],
        estimates: Sequence[LayerMeasurement] = (),
        seconds: float = 0.0,
    ) -> SensitivityResult:
        """Return everything found, in one record."""
        found = [[encode(item) for item in part] for part in (measurements, estimates)]
        self._ask("result", [*found, seconds])
        return decode(self._hear("result").body, SensitivityResult)

    def close(self) -> None:
        """End the process, and with it what it has asked the cluster for."""
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.close()
            process.wait(_LEAVE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        self._log_file.close()

    def _stream(self, question: str, body: Any) -> Iterator[LayerMeasurement]:
        self._ask(question, body)
        while (line := self._hear("found", "end")).kind == "found":
            yield decode(line.body, LayerMeasurement)

    def _ask(self, kind: str, body: Any) -> None:
        assert self._process.stdin is not None
        try:
            write_line(self._process.stdin, kind, body)
        except OSError as error:
            raise self._lost() from error

    def _hear(self, *wanted: str) -> Line:
        """Return the next line of a wanted kind; the others are dealt with on the way."""
        while True:
            try:
                line = self._heard.get(timeout=_ASK_SECONDS)
            except queue.Empty:
                self._progress(self._phase)  # where a cancel takes effect
                continue
            if line is None:
                self._heard.put(None)  # for whoever asks next: nothing will be heard any more
                raise self._lost()
            if line.kind in wanted:
                return line
            self._deal_with(line)

    def _deal_with(self, line: Line) -> None:
        if line.kind == "phase":
            self._phase = str(line.body)
            self._progress(self._phase)
        elif line.kind == "find":
            found = self._find_alike(line.body)
            self._ask("found", None if found is None else encode(found))
        elif line.kind == "refused":
            name, sentence = line.body
            kind = getattr(known_errors, name, SenseError)
            raise (SenseError if kind is known_errors.InfeasibleBudget else kind)(sentence)
        else:
            raise RuntimeError(f"the process that talks to the cluster failed:\n{line.body}")

    def _lost(self) -> ClusterFailed:
        self._log_file.seek(0)
        _log.error(
            "the process that talks to the cluster ended: %s", self._log_file.read()[-4000:].decode("utf-8", "replace")
        )
        return ClusterFailed(_LOST)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            while (line := read_line(answers)) is not None:
                self._heard.put(line)
        self._heard.put(None)


def _started(log: Any) -> subprocess.Popen[bytes]:
    environment = {"RAY_gcs_rpc_server_reconnect_timeout_s": _HEAD_LOST_SECONDS} | os.environ
    return subprocess.Popen(
        [sys.executable, "-m", "senseapp.distributed.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        cwd=Path(__file__).parents[2],
        start_new_session=True,  # Ctrl-C is for the command line alone; it then closes this
    )
