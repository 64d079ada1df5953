"""Execution of a run from its settings to its stored result, its partial results, and storage of its state."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from senseapp.core.errors import NotFound, StorageFailed
from senseapp.core.steps import Progress, StepTitle
from senseapp.measure.cluster.cluster import cluster_address
from senseapp.records.jobs import JobSnapshot, RunRecord, RunState
from senseapp.records.measurement import LayerMeasurement, RunResult, Status, latest
from senseapp.records.spec import RunSpec
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.job_progress import JobControl, PlannedStep
from senseapp.server.leaderboard import headline
from senseapp.server.process.requester import model_bytes, num_bytes
from senseapp.server.session import EarlierRuns
from senseapp.server.tasks import RunObserver, TaskContext, evaluator_of
from senseapp.server.time_estimate import file_works, time_convolutions
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import INTERRUPTED_SENTENCE, RunStore

if TYPE_CHECKING:
    from senseapp.measure.session import Session

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run's own task: the measurement of its settings.

    Attributes:
        first_file_seconds: longest predicted time of the file of the original weights in int8 on this machine, with
            which it is made after the estimates and before the layers; 0: it is not made here.
    """

    run_id: str
    spec: RunSpec
    first_file_seconds: float = 0.0

    @property
    def job_id(self) -> str:
        """Id of the job: that of the run."""
        return self.run_id

    @property
    def most_bytes(self) -> float | None:
        """Limit of memory of a run of an ONNX file below 64 KiB, whose network needs no more."""
        model = self.spec.model
        is_tiny = model.library == "onnx" and num_bytes(model.checkpoint) < 2**16
        return model_bytes(model, self.spec.data.path) if is_tiny else None

    def carry_out(self, context: TaskContext) -> RunResult:
        """Measure what the folder does not hold yet, store each measurement as it comes, and store the result.

        If the folder holds the finished run, its result is returned without loading the model.

        Raises:
            RunMismatch: the folder holds a run with other settings, or another process is measuring into it.
            SenseError: the model, the images or the disk cannot be used; all measurements so far are kept.
        """
        folder = context.folder
        with folder.exclusive():
            folder.claim(self.spec)
            if folder.finished:
                return folder.load_result()
            started, progress = time.monotonic(), context.observer.phase
            progress(StepTitle.READ)
            opened = context.open_session(
                self.spec,
                data_roots=context.data_roots,
                progress=progress,
                earlier=folder.so_far(),
                find_alike=context.earlier_runs.find,
            )
            with closing(opened) as session:
                _take_over(folder, session, context.earlier_runs)
                result = self._measure(context, session, started)
            result = replace(result, summary=headline(result))
            folder.save_result(result)
            return result

    def _measure(self, context: TaskContext, session: Session, started: float) -> RunResult:
        """Return the result; the time of a first file does not count, which is made before the first measurement."""
        folder, observer = context.folder, context.observer
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
        if self.first_file_seconds and not earlier and not folder.candidates():
            began = time.monotonic()
            self._first_file(context, replace(head, estimates=estimates))
            started += time.monotonic() - began
        # A run that stops once settled must repeat its decisions from the measurements that it had at each part.
        done = tuple(folder.measurements.history()) if head.spec.sensitivity.until_settled else earlier
        new = _measure_missing(folder, observer, session, done)
        resumed = 0.0 if reused is not None else sum(item.seconds for item in earlier)  # another run's time is not ours
        seconds = resumed + time.monotonic() - started
        return _with_notes(session.result(latest((*earlier, *new)), estimates, seconds=seconds), notes)

    def _first_file(self, context: TaskContext, so_far: RunResult) -> None:
        """Make the file of the original weights in int8, unless that takes long.

        It needs the images, and no layer's figures. One that fails is made again after the run, which says why.
        """
        works = file_works(so_far.profile, num_images=so_far.num_samples, task=self.spec.model.task).values()
        if sum(work.seconds(time_convolutions()) for work in works) > self.first_file_seconds:
            return
        progress = Progress(context.observer.phase, title=StepTitle.INT8)
        try:
            evaluator = evaluator_of(so_far, context, progress=progress)
            RecommendationTask(run_id=self.run_id).keep_original(evaluator, context)
        except Exception as error:  # of many packages, or of too little memory: without the file, the run is complete
            if error is progress.stopped:
                raise
            _log.warning("run %s: its first file was left out", self.run_id[:8], exc_info=error)


def cluster_for(spec: RunSpec) -> str:
    """Return the address of the cluster that measures a run; empty for this machine, which also does all estimates."""
    return cluster_address() if spec.sensitivity.mode == "exact" else ""


def _take_over(folder: RunFolder, session: Session, known: EarlierRuns) -> None:
    """Copy the measurements of an earlier run, unless this run has measurements of its own."""
    if folder.measurements.count():
        return
    found = session.reusable()
    folder.save_head(session.result(()))  # first, so that the run is never resumed with other arithmetic
    folder.take_over(found, known.taken(len(found), session.targets) if found else None)


def _with_notes(result: RunResult, notes: tuple[str, ...]) -> RunResult:
    return replace(result, notes=(*notes, *result.notes))


def _estimate(folder: RunFolder, observer: RunObserver, session: Session) -> tuple[LayerMeasurement, ...]:
    """Return the estimates; those of the first images are shown too."""
    known = folder.load_estimates()
    if known is not None:
        return known

    def preview(estimates: Sequence[LayerMeasurement]) -> None:
        for each in estimates:
            observer.estimated(each)

    observer.phase(StepTitle.ESTIMATE)
    found = []
    for estimate in session.estimates(preview=preview):
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


class LiveRun(RunObserver):
    """Collects a job's measurements for readers in other threads, and reports its progress.

    Args:
        control: of the job.
        on_measurements: receives the measurements done by an earlier attempt and those planned, once they are known.
        plan: returns the steps of the job from what is known of the run once its model is loaded, and from the
            predicted seconds of the measurements.
    """

    def __init__(
        self,
        control: JobControl,
        *,
        on_measurements: Callable[[int, int], None],
        plan: Callable[[RunResult, float], Sequence[PlannedStep]],
    ) -> None:
        self._control = control
        self._on_measurements = on_measurements
        self._plan = plan
        self._lock = threading.Lock()
        self._head: RunResult | None = None
        self._estimates: list[LayerMeasurement] = []
        self._measurements: list[LayerMeasurement] = []

    def so_far(self) -> RunResult | None:
        """Return the partial result; None before the model was loaded."""
        with self._lock:
            if self._head is None:
                return None
            return replace(self._head, estimates=latest(self._estimates), measurements=latest(self._measurements))

    def phase(self, sentence: str) -> None:
        """Report the step that begins."""
        if sentence:
            _log.info("%s", sentence)
        self._control.phase(sentence)

    def opened(self, head: RunResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """Start from the results of an earlier attempt."""
        with self._lock:
            self._head = head
            self._estimates = list(head.estimates)
            self._measurements = list(head.measurements)
        self._on_measurements(done, total)
        self._control.plan(self._plan(head, predicted_seconds))
        self._control.measurements(total=total, done=done)

    def estimated(self, estimate: LayerMeasurement) -> None:
        """Report one estimate, or a better one; only measurements count as steps."""
        with self._lock:
            self._estimates.append(estimate)
        self._control.check()

    def measured(self, measurement: LayerMeasurement) -> None:
        """Report one measurement."""
        with self._lock:
            self._measurements.append(measurement)
        if measurement.status is Status.NOT_APPLICABLE:  # skipped, and not counted
            self._control.check()
        else:
            self._control.measured(measurement.layer)


class StateKeeper:
    """Writes changes of state; failed writes are retried with every later change and every read of a run.

    Without retries, a run whose end could not be stored would appear to run forever.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[str, JobSnapshot] = {}

    def keep(self, snapshot: JobSnapshot) -> None:
        """Store the state of a run, or keep it for a retry."""
        with self._lock:
            self._waiting[snapshot.run_id] = snapshot
            self._write_all()

    def up_to_date(self, record: RunRecord) -> RunRecord:
        """Return ``record`` with its current state, which is stored now if the disk allows."""
        if not self._waiting:
            return record
        with self._lock:
            newer = self._waiting.get(record.run_id)  # looked up first, since ``record`` was read before this write
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
