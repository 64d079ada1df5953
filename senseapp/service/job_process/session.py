"""A session of the engine that lives in another process; to the service it is like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from senseapp.errors import SenseError
from senseapp.results import LayerMeasurement, ModelProfile, SensitivityResult
from senseapp.service.job_process.messages import Line
from senseapp.service.job_process.process import JobProcess
from senseapp.spec import RunSpec
from senseapp.spec.codec import decode, encode


class ProcessSession:
    """One run in ``process``.

    Args:
        process: is this session's alone until it is closed.
        spec: the settings.
        address: of the cluster; empty to measure on this machine.
        data_roots: folders that images may be read from; empty allows any.
        progress: is told what begins, and several times a second "" for nothing new; may raise to stop the run.
        earlier: of the attempt that is resumed.
        find_alike: asked for an earlier run by a hash over everything that decides this one's numbers.
        job_mb: memory that the run may take, see :class:`~senseapp.service.memory.MemoryGuard`.
        leave: is given the process at the end, and whether it can be used again.

    Raises:
        SenseError: as for a session in this process, or the process or the cluster was lost.
    """

    def __init__(
        self,
        process: JobProcess,
        spec: RunSpec,
        *,
        address: str = "",
        data_roots: tuple[Path, ...],
        progress: Callable[[str], None],
        earlier: SensitivityResult | None,
        find_alike: Callable[[str], SensitivityResult | None],
        job_mb: int = 0,
        leave: Callable[[JobProcess, bool], None] = lambda process, reusable: process.close(),
    ) -> None:
        self._process = process
        self._progress = progress
        self._leave = leave
        self._answered = False  # whether nothing asked is still being worked on
        try:
            opened = self._open(
                {
                    "spec": encode(spec),
                    "address": address,
                    "data_roots": [str(root) for root in data_roots],
                    "earlier": None if earlier is None else encode(earlier),
                    "job_mb": job_mb,
                },
                find_alike,
            )
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
        """Return the time that a trial, or the simulated plan of a cluster, predicts for all measurements."""
        return self._predicted_seconds

    def estimates(self) -> Iterator[LayerMeasurement]:
        """Yield the quick scan's estimates."""
        yield from self._stream("estimates", None)

    def reusable(self) -> tuple[LayerMeasurement, ...]:
        """Return the measurements of an earlier run of the same."""
        return self._reusable

    def measure(self, done: Sequence[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        """Yield what ``done`` lacks, as it is found."""
        yield from self._stream("measure", [encode(item) for item in done])

    def result(
        self,
        measurements: Sequence[LayerMeasurement],
        estimates: Sequence[LayerMeasurement] = (),
        seconds: float = 0.0,
    ) -> SensitivityResult:
        """Return everything found, in one record."""
        found = [[encode(item) for item in part] for part in (measurements, estimates)]
        return decode(self._answer("result", [*found, seconds]).body, SensitivityResult)

    def close(self) -> None:
        """Give the process back, or end it where it is in the middle of something."""
        if self._answered:
            with suppress(SenseError):  # it has ended since, which whoever asks it next will find
                self._process.ask("leave")
        self._leave(self._process, self._answered)

    def _open(self, request: dict[str, Any], find_alike: Callable[[str], SensitivityResult | None]) -> dict[str, Any]:
        self._process.ask("open", request)
        while (line := self._process.hear("find", "opened", progress=self._progress)).kind == "find":
            found = find_alike(line.body)
            self._process.ask("found", None if found is None else encode(found))
        self._answered = True
        return dict(line.body)

    def _answer(self, question: str, body: Any) -> Line:
        self._answered = False
        self._process.ask(question, body)
        line = self._process.hear(question, progress=self._progress)
        self._answered = True
        return line

    def _stream(self, question: str, body: Any) -> Iterator[LayerMeasurement]:
        self._answered = False
        self._process.ask(question, body)
        while (line := self._process.hear("found", "end", progress=self._progress)).kind == "found":
            yield decode(line.body, LayerMeasurement)
            self._process.ask("taken")  # it is stored: the process runs ahead by no more than it must
        self._answered = True
