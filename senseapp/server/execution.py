"""A run from its settings to its stored result, what it has found so far, and its state on the way to the store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from senseapp.core.errors import NotFound, StorageFailed
from senseapp.measure.cluster.cluster import cluster_address
from senseapp.records.jobs import JobSnapshot, RunRecord, RunState
from senseapp.records.measurement import LayerMeasurement, RunResult, Status, latest
from senseapp.records.spec import RunSpec
from senseapp.server.leaderboard import headline
from senseapp.server.session import OpenSession
from senseapp.server.tasks import EarlierRuns, NoEarlierRuns, RunObserver, TaskContext
from senseapp.server.worker import JobControl
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import INTERRUPTED_SENTENCE, RunStore

if TYPE_CHECKING:
    from senseapp.measure.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run's own task: to measure what its settings ask for."""

    run_id: str
    spec: RunSpec

    @property
    def job_id(self) -> str:
        """Names the job: the run itself."""
        return self.run_id

    def carry_out(self, context: TaskContext) -> RunResult:
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
) -> RunResult:
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


def _take_over(folder: RunFolder, session: Session, known: EarlierRuns) -> None:
    """Begin with what an earlier run measured; a run that has begun itself goes on by itself."""
    if folder.measurements.count():
        return
    found = session.reusable()
    folder.save_head(session.result(()))  # first, so that what follows is never resumed with other arithmetic
    folder.take_over(found, known.taken(len(found), session.targets) if found else None)


def _measure(folder: RunFolder, observer: RunObserver, session: Session, started: float) -> RunResult:
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


def _with_notes(result: RunResult, notes: tuple[str, ...]) -> RunResult:
    return replace(result, notes=(*notes, *result.notes))


def _estimate(folder: RunFolder, observer: RunObserver, session: Session) -> tuple[LayerMeasurement, ...]:
    known = folder.load_estimates()
    if known is not None:
        return known
    observer.phase("Estimating all layers at once")
    found = []
    for estimate in session.estimates(preview=observer.estimated):
        found.append(estimate)
        observer.estimated(estimate)
    folder.save_estimates(tuple(found))
    return tuple(found)


def _measure_missing(
    folder: RunFolder, observer: RunObserver, session: Session, done: tuple[LayerMeasurement, ...]
) -> list[LayerMeasurement]:
    found = []
    for measurement in session.measure(done):
        folder.measurements.append(measurement)
        found.append(measurement)
        observer.measured(measurement)
    return found


_log = logging.getLogger(__name__)


class LiveRun:
    """Collects a job's findings for readers in other threads, and passes its progress on.

    ``on_plan`` is told the steps done by an earlier attempt and those planned, once they are known.
    """

    def __init__(self, control: JobControl, *, on_plan: Callable[[int, int], None]) -> None:
        self._control = control
        self._on_plan = on_plan
        self._lock = threading.Lock()
        self._head: RunResult | None = None
        self._estimates: list[LayerMeasurement] = []
        self._measurements: list[LayerMeasurement] = []

    def so_far(self) -> RunResult | None:
        """Return what is known; None before the model was loaded."""
        with self._lock:
            if self._head is None:
                return None
            return replace(self._head, estimates=latest(self._estimates), measurements=latest(self._measurements))

    def phase(self, sentence: str) -> None:
        """Show the step that begins."""
        if sentence:
            _log.info("%s", sentence)
        self._control.phase(sentence)

    def opened(self, head: RunResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """Take up what an earlier attempt found."""
        with self._lock:
            self._head = head
            self._estimates = list(head.estimates)
            self._measurements = list(head.measurements)
        self._on_plan(done, total)
        self._control.plan(total=total, done=done, predicted_seconds=predicted_seconds or None)

    def estimated(self, estimate: LayerMeasurement) -> None:
        """Show one estimate, or a better one; only measurements count as steps."""
        with self._lock:
            self._estimates.append(estimate)
        self._control.check()

    def measured(self, measurement: LayerMeasurement) -> None:
        """Show one measurement."""
        with self._lock:
            self._measurements.append(measurement)
        if measurement.status is Status.NOT_APPLICABLE:  # passed over; not among those that are counted
            self._control.check()
        else:
            self._control.step(f"Measured {measurement.layer}")


class StateKeeper:
    """Writes changes of state, and tries again with every later one and every look at a run.

    A run whose end could not be stored would else look as if it ran for ever.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[str, JobSnapshot] = {}

    def keep(self, snapshot: JobSnapshot) -> None:
        """Store the state of a run, or remember it."""
        with self._lock:
            self._waiting[snapshot.run_id] = snapshot
            self._write_all()

    def up_to_date(self, record: RunRecord) -> RunRecord:
        """Return ``record`` with the state it has; stored now if the disk takes it again."""
        if not self._waiting:
            return record
        with self._lock:
            newer = self._waiting.get(record.run_id)  # looked up first: ``record`` was read before it is written now
            with suppress(StorageFailed):
                self._write_all()
        return record if newer is None else replace(record, state=newer.state, error=newer.error)

    def _write_all(self) -> None:
        for run_id, snapshot in list(self._waiting.items()):
            self._write(snapshot)
            del self._waiting[run_id]

    def _write(self, snapshot: JobSnapshot) -> None:
        interrupted = snapshot.state is RunState.INTERRUPTED
        known = {"done": snapshot.done, "total": snapshot.total} if snapshot.total else {}
        try:
            self._store.set_state(
                snapshot.run_id,
                snapshot.state,
                error=INTERRUPTED_SENTENCE if interrupted else snapshot.error,
                done=known.get("done"),
                total=known.get("total"),
            )
        except NotFound:
            _log.info("run %s was deleted before it ended", snapshot.run_id)
