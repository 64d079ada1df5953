"""Execution of a run from its settings to its stored result, its partial results, and storage of its state."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from senseapp.core.errors import SenseError
from senseapp.core.steps import Progress, StepTitle
from senseapp.measure.cluster.cluster import cluster_address
from senseapp.records.headline import headline
from senseapp.records.jobs import RunState
from senseapp.records.measurement import LayerMeasurement, Reused, RunResult, Status, latest
from senseapp.records.spec import RunSpec
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.job_progress import JobControl, PlannedStep
from senseapp.server.machine import MachineSpeed, time_convolutions
from senseapp.server.process.requester import model_limits, num_bytes
from senseapp.server.tasks import RunObserver, RunTask, TaskContext
from senseapp.server.time_estimate import Workload
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import RunStore

if TYPE_CHECKING:
    from senseapp.measure.session import Session

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(RunTask):
    """A run's own task: the measurement of its settings.

    Attributes:
        first_file_seconds: longest predicted time of the file of the original weights in int8 on this machine, with
            which it is made after the estimates and before the layers; 0: it is not made here.
        here: whether this machine measures, even if there is a cluster.
        speed: of this machine, where it was timed.
    """

    run_id: str
    spec: RunSpec
    first_file_seconds: float = 0.0
    here: bool = False
    speed: MachineSpeed | None = None

    @property
    def most_bytes(self) -> float:
        """Limit of memory of a run of an ONNX file below 64 KiB, whose network needs no more."""
        model = self.spec.model
        is_tiny = model.library == "onnx" and num_bytes(model.checkpoint) < 2**16
        return model_limits(model, self.spec.data.path)[1] if is_tiny else math.inf

    @property
    def cluster(self) -> str:
        """Address of the cluster that measures; empty for this machine."""
        return "" if self.here else cluster_for(self.spec)

    def carry_out(self, context: TaskContext) -> RunResult:
        """Measure what the folder does not hold yet, store each measurement as it comes, and store the result.

        If the folder holds the finished run, its result is returned without loading the model. Raises RunMismatch where
        the folder holds a run with other settings, or another process is measuring into it, and SenseError where the
        model, the images or the disk cannot be used; all measurements so far are kept.
        """
        folder = context.folder
        with folder.exclusive():
            folder.claim(self.spec)
            if folder.finished:
                return folder.load_result()
            started, reuse = time.monotonic(), _Reuse(context)
            context.observer.phase(StepTitle.READ)
            opened = context.open_session(
                self.spec,
                data_roots=context.data_roots,
                progress=context.observer.phase,
                earlier=folder.so_far(),
                find_alike=reuse.find,
            )
            with closing(opened) as session:
                reuse.take_over(session)
                result = self._measure(context, session, started, reuse.content_key)
            result = replace(result, summary=headline(result))
            folder.save_result(result)
            return result

    def _measure(self, context: TaskContext, session: Session, started: float, content_key: str) -> RunResult:
        """Return the result; the time of a first file does not count, which is made before the first measurement."""
        folder, observer = context.folder, context.observer
        earlier = folder.measurements.read()
        reused = folder.load_reused()
        notes = () if reused is None else (reused.note,)
        head = session.result(earlier, folder.load_estimates() or ())
        head = replace(head, notes=(*notes, *head.notes))
        folder.save_head(head)

        observer.opened(
            head,
            done=folder.measurements.count() - sum(item.status is Status.NOT_APPLICABLE for item in earlier),
            total=session.targets,
            predicted_seconds=session.predicted_seconds(),
            content_key=content_key,
        )
        estimates = _estimate(folder, observer, session)
        if self.first_file_seconds and not earlier and not folder.candidates():
            began = time.monotonic()
            self._first_file(context, replace(head, estimates=estimates))
            started += time.monotonic() - began
        # A run that stops once settled must repeat its decisions from the measurements that it had at each part.
        done = tuple(folder.measurements.history()) if head.spec.sensitivity.until_settled else earlier
        new = []
        for measurement in session.measure(done):
            folder.measurements.append(measurement)
            new.append(measurement)
            observer.measured(measurement)
        resumed = 0.0 if reused is not None else sum(item.seconds for item in earlier)  # another run's time is not ours
        seconds = resumed + time.monotonic() - started
        result = session.result(latest((*earlier, *new)), estimates, seconds=seconds)
        return replace(result, notes=(*notes, *result.notes))

    def _first_file(self, context: TaskContext, so_far: RunResult) -> None:
        """Make the file of the original weights in int8, if that is quick; one that fails is tried after the run."""
        speed, profile = self.speed or time_convolutions(), so_far.profile
        seconds = Workload(spec=self.spec, profile=profile, num_images=so_far.num_samples, speed=speed).file()
        if sum(seconds.values()) > self.first_file_seconds:
            return
        from senseapp.prove.evaluator import ScheduleEvaluator  # torch has loaded by now
        from senseapp.prove.search_images import with_held_out

        progress = Progress(context.observer.phase, title=StepTitle.INT8)
        try:
            evaluator = ScheduleEvaluator.open(so_far, data_roots=context.data_roots, progress=progress)
            RecommendationTask(run_id=self.run_id).keep_original(with_held_out(evaluator), context)
        except Exception as error:  # of many packages, or of too little memory: without the file, the run is complete
            if error is progress.stopped:
                raise
            _log.warning("run %s: its first file was left out", self.run_id[:8], exc_info=error)


def cluster_for(spec: RunSpec) -> str:
    """Return the address of the cluster that measures a run; empty for this machine, which also does all estimates."""
    return cluster_address() if spec.sensitivity.mode == "exact" else ""


class _Reuse:
    """Finds the earlier run with the most measurements among those with the same content key, and takes these over."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._title = self.content_key = ""

    def find(self, content_key: str) -> RunResult | None:
        """Return the result of that run, finished or not."""
        self.content_key = content_key
        best: RunResult | None = None
        for run in self._context.earlier:
            with suppress(SenseError):  # deleted or damaged meanwhile: then everything is measured
                result = RunFolder(run.folder).so_far() if run.content_key == content_key else None
                if result is not None and len(result.measurements) > (len(best.measurements) if best else 0):
                    best, self._title = result, run.title
        return best

    def take_over(self, session: Session) -> None:
        """Copy the measurements of the found run, unless this run has measurements of its own."""
        folder = self._context.folder
        if folder.measurements.count():
            return
        found = session.reusable()
        folder.save_head(session.result(()))  # first, so that the run is never resumed with other arithmetic
        reused = Reused(title=self._title, taken=len(found), total=session.targets) if found else None
        folder.take_over(found, reused)


def _estimate(folder: RunFolder, observer: RunObserver, session: Session) -> tuple[LayerMeasurement, ...]:
    """Return the estimates; those of the first images are shown too."""
    known = folder.load_estimates()
    if known is not None:
        return known

    def preview(estimates: Sequence[LayerMeasurement]) -> None:
        for each in estimates:
            observer.measured(each)

    observer.phase(StepTitle.ESTIMATE)
    found = []
    for estimate in session.estimates(preview=preview):
        found.append(estimate)
        observer.measured(estimate)
    folder.save_estimates(tuple(found))
    return tuple(found)


class LiveRun(RunObserver):
    """Collects a job's measurements for readers in other threads, and reports its progress.

    ``plan`` returns the steps of the job from what is known of the run once its model is loaded, and from the predicted
    seconds of the measurements.
    """

    def __init__(
        self,
        control: JobControl,
        store: RunStore,
        run_id: str,
        *,
        plan: Callable[[RunResult, float], Sequence[PlannedStep]],
    ) -> None:
        self._control, self._store, self._run_id, self._plan = control, store, run_id, plan
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

    def opened(
        self, head: RunResult, *, done: int, total: int, predicted_seconds: float, content_key: str = ""
    ) -> None:
        """Start from the results of an earlier attempt, or of the run that measurements were taken from."""
        with self._lock:
            self._head = head
            self._estimates = list(head.estimates)
            self._measurements = list(head.measurements)
        if (reused := self._store.folder(self._run_id).load_reused()) is not None:
            self._store.update(self._run_id, origin=reused.sentence)
        if content_key:
            self._store.update(self._run_id, content_key=content_key)  # for later runs
        self._store.set_state(self._run_id, RunState.RUNNING, done=done, total=total)
        self._control.plan(self._plan(head, predicted_seconds))
        self._control.measurements(total=total, done=done, is_resumed=reused is None)

    def measured(self, measurement: LayerMeasurement) -> None:
        """Report one measurement, or one estimate; only measurements of layers that are not skipped count as steps."""
        with self._lock:
            (self._estimates if measurement.estimated else self._measurements).append(measurement)
        if measurement.estimated or measurement.status is Status.NOT_APPLICABLE:
            self._control.check()
        else:
            self._control.measured(measurement.layer)
