"""One run from its settings to its stored result; the app and the command line both come through here."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Protocol

from senseapp.results import LayerMeasurement, SensitivityResult, latest
from senseapp.service.session import AnalysisSession, OpenSession
from senseapp.spec import RunSpec
from senseapp.store import RunFolder

__all__ = ["RunObserver", "execute"]


class RunObserver(Protocol):
    """Is told what happens, in the thread that does it; raising from any call stops the run where it is."""

    def phase(self, sentence: str) -> None:
        """A long step begins."""

    def opened(self, head: SensitivityResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """The model is loaded; ``head`` holds what an earlier attempt found in ``done`` of ``total`` steps."""

    def estimated(self, estimate: LayerMeasurement) -> None:
        """The quick scan found one estimate."""

    def measured(self, measurement: LayerMeasurement) -> None:
        """One measurement was made, and is already on the disk."""


def execute(
    spec: RunSpec,
    folder: RunFolder,
    observer: RunObserver,
    *,
    open_session: OpenSession,
    data_roots: tuple[Path, ...] = (),
) -> SensitivityResult:
    """Measure what ``folder`` does not hold yet, store each measurement as it comes, and store the result.

    A folder that holds the finished run is answered from it, without loading the model.

    Raises:
        RunMismatch: the folder holds a run with other settings, or another process is measuring into it.
        SenseError: the model, the images or the disk refuse; everything measured so far is kept.
    """
    with folder.exclusive():
        folder.claim(spec)
        if folder.finished:
            return folder.load_result()
        started = time.monotonic()
        observer.phase("Loading the model and the images")
        opened = open_session(spec, data_roots=data_roots, progress=observer.phase, earlier=folder.so_far())
        with closing(opened) as session:
            result = _measure(folder, observer, session, started)
        folder.save_result(result)
        return result


def _measure(folder: RunFolder, observer: RunObserver, session: AnalysisSession, started: float) -> SensitivityResult:
    earlier = folder.measurements.read()
    head = session.result(earlier, folder.load_estimates() or ())
    folder.save_head(head)
    observer.opened(
        head,
        done=folder.measurements.count(),
        total=session.targets,
        predicted_seconds=session.predicted_seconds(),
    )
    estimates = _estimate(folder, observer, session)
    new = _measure_missing(folder, observer, session, earlier)
    seconds = sum(item.seconds for item in earlier) + time.monotonic() - started
    return session.result(latest((*earlier, *new)), estimates, seconds=seconds)


def _estimate(folder: RunFolder, observer: RunObserver, session: AnalysisSession) -> tuple[LayerMeasurement, ...]:
    known = folder.load_estimates()
    if known is not None:
        return known
    observer.phase("Estimating all layers at once")
    found = []
    for estimate in session.estimates():
        found.append(estimate)
        observer.estimated(estimate)
    folder.save_estimates(tuple(found))
    return tuple(found)


def _measure_missing(
    folder: RunFolder, observer: RunObserver, session: AnalysisSession, earlier: tuple[LayerMeasurement, ...]
) -> list[LayerMeasurement]:
    found = []
    for measurement in session.measure(earlier):
        folder.measurements.append(measurement)
        found.append(measurement)
        observer.measured(measurement)
    return found
