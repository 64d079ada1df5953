"""One run from its settings to its stored result; the app and the command line both come through here."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from senseapp.distributed.cluster import cluster_address
from senseapp.results import LayerMeasurement, SensitivityResult, Status, latest
from senseapp.service.headline import headline
from senseapp.service.run_task import EarlierRuns, NoEarlierRuns, RunObserver, TaskContext
from senseapp.service.session import AnalysisSession, OpenSession
from senseapp.spec import RunSpec
from senseapp.store import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run's own task: to measure what its settings ask for."""

    run_id: str
    spec: RunSpec

    @property
    def job_id(self) -> str:
        """Names the job: the run itself."""
        return self.run_id

    def carry_out(self, context: TaskContext) -> SensitivityResult:
        """Measure and keep the result, see :func:`execute`."""
        return execute(
            self.spec,
            context.folder,
            context.observer,
            open_session=context.open_session,
            data_roots=context.data_roots,
            earlier_runs=context.earlier_runs,
        )


def cluster_for(spec: RunSpec) -> str:
    """Return the address of the cluster that measures a run; empty for this machine, which suffices for estimates."""
    return cluster_address() if spec.sensitivity.mode == "exact" else ""


def execute(
    spec: RunSpec,
    folder: RunFolder,
    observer: RunObserver,
    *,
    open_session: OpenSession,
    data_roots: tuple[Path, ...] = (),
    earlier_runs: EarlierRuns | None = None,
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
        known = earlier_runs or NoEarlierRuns()
        opened = open_session(
            spec, data_roots=data_roots, progress=observer.phase, earlier=folder.so_far(), find_alike=known.find
        )
        with closing(opened) as session:
            _take_over(folder, session, known)
            result = _measure(folder, observer, session, started)
        result = replace(result, summary=headline(result))
        folder.save_result(result)
        return result


def _take_over(folder: RunFolder, session: AnalysisSession, known: EarlierRuns) -> None:
    """Begin with what an earlier run measured; a run that has begun itself goes on by itself."""
    if folder.measurements.count():
        return
    found = session.reusable()
    folder.save_head(session.result(()))  # first, so that what follows is never resumed with other arithmetic
    folder.take_over(found, known.taken(len(found), session.targets) if found else None)


def _measure(folder: RunFolder, observer: RunObserver, session: AnalysisSession, started: float) -> SensitivityResult:
    earlier = folder.measurements.read()
    reused = folder.load_reused()
    notes = () if reused is None else (reused.note,)
    head = _with_notes(session.result(earlier, folder.load_estimates() or ()), notes)
    folder.save_head(head)
    observer.opened(
        head,
        done=folder.measurements.count() - sum(item.status is Status.NOT_APPLICABLE for item in earlier),
        total=session.targets,
        predicted_seconds=session.predicted_seconds(),
    )
    estimates = _estimate(folder, observer, session)
    # What a run that settles decided at each part hangs on what it knew then, not on what it knows now.
    done = tuple(folder.measurements.history()) if head.spec.sensitivity.until_settled else earlier
    new = _measure_missing(folder, observer, session, done)
    seconds = sum(item.seconds for item in earlier) + time.monotonic() - started
    return _with_notes(session.result(latest((*earlier, *new)), estimates, seconds=seconds), notes)


def _with_notes(result: SensitivityResult, notes: tuple[str, ...]) -> SensitivityResult:
    return replace(result, notes=(*notes, *result.notes))


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
    folder: RunFolder, observer: RunObserver, session: AnalysisSession, done: tuple[LayerMeasurement, ...]
) -> list[LayerMeasurement]:
    found = []
    for measurement in session.measure(done):
        folder.measurements.append(measurement)
        found.append(measurement)
        observer.measured(measurement)
    return found
