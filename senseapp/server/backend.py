"""State shared by all visitors of one server: the store, the job runner, and partial results of running jobs."""

from __future__ import annotations

import atexit
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from senseapp.core.errors import NotFound, SenseError, StorageFailed
from senseapp.core.files import DAY_SECONDS, MB, lock_home, remove_temporaries
from senseapp.core.steps import StepTitle
from senseapp.metrics import METRICS
from senseapp.records.goal import makes_files
from senseapp.records.jobs import JobSnapshot, RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.server.access import DiskUse, check_run_room, sweep_uploads
from senseapp.server.checks import CheckObserver, CheckTask, folder_of_checks, sweep_checks
from senseapp.server.delivery_tasks import DeliverTask, RecommendationTask, original_in_int8
from senseapp.server.execution import LiveRun, Measurement, cluster_for
from senseapp.server.job_progress import JobCancelled, JobControl, PlannedStep, Unfinished
from senseapp.server.machine import MACHINE_LOAD, MachineSpeed, free_bytes, load_engine, memory_limit, time_convolutions
from senseapp.server.model_cards import ModelCard, ModelCards, load_card, shipped_card
from senseapp.server.operations import RunLogs
from senseapp.server.process.processes import JobProcesses, carry_out_on_cluster
from senseapp.server.process.requester import ANYBODY, AnswerT, Requester, WorkerRequest, network_request
from senseapp.server.run_tasks import Verification
from senseapp.server.settings import RateLimiter, ServerSettings, check_paths, configured_data_roots, uploads_folder
from senseapp.server.tasks import EarlierRun, FinishedRunTask, OpenSession, RunTask, TaskContext, open_local_session
from senseapp.server.time_estimate import SEARCHES_PER_FILE, RuntimePredictor, kind_of, num_images
from senseapp.server.worker import JobRunner
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import INTERRUPTED_SENTENCES, RunStore

_log = logging.getLogger(__name__)
_USUAL_SETTINGS = ServerSettings()
UNDO_SECONDS = 60.0
"""Time in which a deleted run can be restored."""
SHORT_SECONDS = 60.0
"""Largest predicted time of a run or a recommendation in the lane of short jobs."""
_SHORT_JOB_BYTES = 1_000_000_000
"""Free memory required to start a short job beside another: a process takes 600 MB, a small network the rest."""
_TASK_ENDS = (RunState.DONE, RunState.FAILED, RunState.CANCELLED)  # an interrupted task is told after the next start


class Backend:
    """One per process and senseapp home.

    Args:
        home: folder of the database and the runs; created if it is missing.
        open_session: prepares the engine for a run, in this process; None: on the cluster of the environment, or as
            ``settings`` say.
        data_roots: folders of the server that runs may read; None: ``SENSEAPP_DATA_ROOTS``.
        workers: threads that measure; 0 for none, where ``runner.run_next()`` does the work; None: as in ``settings``.
        settings: limits on parallel work and on storage.
        calibrate: times this machine, on first use; None: the process that loads the engine first does it.
    """

    def __init__(
        self,
        home: Path,
        *,
        open_session: OpenSession | None = None,
        data_roots: tuple[Path, ...] | None = None,
        workers: int | None = None,
        settings: ServerSettings = _USUAL_SETTINGS,
        calibrate: Callable[[], MachineSpeed] | None = None,
    ) -> None:
        self.home = home
        self.settings = settings
        self.store = RunStore(home)
        self.store.recover()
        self.cards = ModelCards(self._describe)
        self.speeds = RuntimePredictor(
            home / "speed.json",
            calibrate=calibrate or self._time_machine,
            recommend_seconds=0 if open_session is not None else settings.recommend_seconds,
        )
        self.processes = JobProcesses(settings.workers + 1) if settings.job_processes else None
        self._open_session = open_session
        self._data_roots = configured_data_roots() if data_roots is None else data_roots
        self._live: dict[str, LiveRun] = {}
        self.image_counts: dict[DataSpec, int] = {}  # from the surveys so far; includes classes left out
        self.receiving = threading.Lock()  # of uploads: each is counted before the next is admitted
        self.rate_limiter = RateLimiter(settings.runs_per_minute)
        self._warming = threading.Lock()
        self._run_logs = RunLogs(self.store)
        self.tidy(at_start=True)
        self.runner = JobRunner(
            self._work,
            on_change=self._keep_state,
            max_queue=settings.max_queue,
            workers=settings.workers if workers is None else workers,
            short_workers=settings.short_workers if self.processes and workers is None else 0,
            may_run_short=lambda: free_bytes() >= _SHORT_JOB_BYTES,
        )

    def readable_folders(self, owner: str) -> tuple[Path, ...]:
        """Return the folders whose files runs of ``owner`` may read."""
        return (*self._data_roots, uploads_folder(self.home, owner))

    def disk_use(self, owner: str) -> DiskUse:
        """Return the disk use of the runs of ``owner`` and of all users."""
        return DiskUse(
            own_bytes=self.store.bytes_used(owner),
            own_limit_bytes=self.settings.person_mb * MB,
            all_bytes=self.store.bytes_used(),
            all_limit_bytes=self.settings.server_mb * MB,
            free_bytes=shutil.disk_usage(self.store.folder_of_runs).free,
            keep_days=self.settings.keep_days,
        )

    def answer(self, request: WorkerRequest[AnswerT], requester: Requester = ANYBODY) -> AnswerT:
        """Answer a request about uploaded files, in a worker process if there are any; may wait.

        Raises ReadingStopped if the file takes too long, and Abandoned if ``requester`` leaves before.
        """
        if self.processes:
            return self.processes.answer(request, requester)
        load_engine()
        return request.call()

    def _describe(self, model: ModelSpec, requester: Requester) -> ModelCard:
        if model == ModelSpec():
            return shipped_card()
        return self.answer(network_request(partial(load_card, model), model), requester)

    def _time_machine(self) -> MachineSpeed:
        with suppress(SenseError):  # its process ended
            return self.answer(WorkerRequest(call=partial(time_convolutions)))
        return time_convolutions()

    def up_to_date(self, record: RunRecord) -> RunRecord:
        """Return ``record`` with the state of its job, which the disk may have refused to store."""
        job = None if record.state.finished else self.runner.snapshot(record.run_id)
        return record if job is None else replace(record, state=job.state, error=job.error)

    def so_far(self, run_id: str) -> RunResult | None:
        """Return the result of a run, or the partial one so far; None before its model was loaded."""
        live = self._live.get(run_id)
        return (live.so_far() if live is not None else None) or self.store.folder(run_id).so_far()

    def start(self, record: RunRecord, person: str = "", *, seconds: float | None = None, here: bool = False) -> None:
        """Queue a run with so many predicted ``seconds``; with ``here`` this machine measures, despite a cluster.

        A file that would follow the run by itself comes before its layers.
        """
        spec, on_cluster = record.spec, cluster_for(record.spec)
        has_file = self._open_session is None and spec.sensitivity.mode != "quick" and not on_cluster
        most = self.settings.recommend_seconds * SEARCHES_PER_FILE if has_file and makes_files(spec.goal) else 0.0
        task = Measurement(run_id=record.run_id, spec=spec, first_file_seconds=most, here=here)
        short = seconds is not None and seconds <= SHORT_SECONDS and not on_cluster
        self.runner.submit(task, short=short, person=person)

    def reads_upload(self, name: str) -> bool:
        """Return whether a run, or a check that has not ended, reads the upload in the folder of this name."""
        waiting = (task for task in self.runner.unfinished() if isinstance(task, CheckTask))
        return self.store.reads_upload(name) or any(task.reads(name) for task in waiting)

    def remove_deleted_later(self) -> None:
        """Schedule the removal of a deleted run's files for when the deletion can no longer be undone."""

        def remove() -> None:
            with suppress(StorageFailed):  # the next deletion or start removes them
                self.store.remove_deleted(older_seconds=UNDO_SECONDS)

        waited = threading.Timer(UNDO_SECONDS + 5, remove)
        waited.daemon = True
        waited.start()

    def tidy(self, *, at_start: bool = False) -> None:
        """Delete the runs and checks that exceed the settings' retention; at a start also what is half-written."""
        days = self.settings.keep_days
        for run_id in self.store.unchanged_since(time.time() - days * DAY_SECONDS) if days else ():
            self.store.remove(run_id)
            _log.info("run %s was deleted: nobody touched it for %d days", run_id, days)
        sweep_checks(self.home, days, at_start=at_start)

    def warm_up(self, also: Callable[[], None] = lambda: None) -> None:
        """Load torch, time this machine and then call ``also``, in the background; later calls do nothing."""
        if self._warming.acquire(blocking=False):  # never released: once is enough
            threading.Thread(target=self._warm_up, args=(also,), name="senseapp-warm-up", daemon=True).start()

    def close(self) -> None:
        """Interrupt running and waiting jobs; all measurements are already on disk."""
        self.runner.close()
        if self.processes:
            self.processes.close()
        self._run_logs.close()
        self.store.close()

    def _warm_up(self, also: Callable[[], None]) -> None:
        try:
            with MACHINE_LOAD.unknown():
                if self.processes:
                    self._time_machine()  # an early run waits for that process, not for this one
                self.speeds.speed()
            while self.processes and any(self.runner.load()):  # this process rarely needs the engine
                time.sleep(2)
            load_engine()
            also()
            if not any(self.runner.load()):
                MACHINE_LOAD.look_until_quiet()  # pages were drawn, and the engine loaded, meanwhile
        except Exception:
            _log.exception("the warm-up failed; the first run will show why")

    def _work(self, task: RunTask, control: JobControl) -> None:
        if isinstance(task, CheckTask):
            context = TaskContext(
                folder=RunFolder(folder_of_checks(self.home, task.owner) / task.run_id),
                observer=CheckObserver(control.phase, control.plan),
                data_roots=self.readable_folders(task.owner),
            )
            self._carry_out(task, context, device="auto")
            return
        record = self.store.record(task.run_id)
        check_paths(record.spec, self.readable_folders(record.owner))  # an imported run may name any path
        if isinstance(task, Measurement) and self.speeds.known:
            task = replace(task, speed=self.speeds.speed())  # or its process would time the machine again
        load, planned = MACHINE_LOAD.load(), list[PlannedStep]()

        def plan(head: RunResult, seconds_of_layers: float) -> Sequence[PlannedStep]:
            earlier = self.store.finished_specs(record.owner)
            planned[:] = self.speeds.run_steps(record.spec, head.profile, head.num_samples, load=load, earlier=earlier)
            layers = StepTitle.LAYERS if seconds_of_layers else ""
            return [replace(each, seconds=seconds_of_layers) if each.title == layers else each for each in planned]

        live = LiveRun(control, self.store, record.run_id, plan=plan)
        here = isinstance(task, Measurement) and task.here
        context = TaskContext(
            folder=self.store.folder(record.run_id),
            observer=live,
            data_roots=self.readable_folders(record.owner),
            earlier=tuple(
                EarlierRun(title=title, folder=self.store.folder_of_runs / run_id, content_key=key)
                for run_id, title, key in self.store.others(record.run_id)
            ),
            open_session=open_local_session if here else self._open_session or open_local_session,
        )
        self._live[task.job_id] = live
        try:
            word = "Run" if isinstance(task, Measurement) else type(task).__name__
            _log.info("%s of %s begins", word, record.spec.model.title)
            control.plan(self._first_plan(record, task, context.folder, load))
            done, total = self.store.progress(record.run_id)
            if isinstance(task, Measurement) and done:
                control.measurements(total=total, done=done, is_resumed=True)
            self._carry_out(task, context, device=record.spec.sensitivity.device)
            if isinstance(task, Measurement):
                result = context.folder.load_result()
                self.store.update(record.run_id, headline=result.summary)
                self._follow(record, result, context)
                if not result.passes.workers:  # else it is not representative of this machine
                    self.speeds.learn(planned, control.seconds_of_steps(), kind=kind_of(record.spec))
        finally:
            del self._live[task.job_id]
            remove_temporaries(context.folder.path, beside_others=True)  # of a process that was killed
            with suppress(StorageFailed):  # less important than the error that ended the job
                self.store.update_size(record.run_id)

    def _first_plan(self, record: RunRecord, task: RunTask, folder: RunFolder, load: float) -> Sequence[PlannedStep]:
        """Return the steps of a job before its model is loaded; none for work that is not planned, or not yet."""
        if isinstance(task, RecommendationTask | DeliverTask):
            schedule = isinstance(task, RecommendationTask)
            in_float = isinstance(task, DeliverTask) and task.settings.kind == "float"
            return self.speeds.task_steps(folder.load_result(), with_schedule=schedule, load=load, in_float=in_float)
        if isinstance(task, Verification) and task.is_short:
            steps = self.speeds.task_steps(folder.load_result(), with_schedule=True, load=load)
            return [each for each in steps if each.title == StepTitle.PROOF]
        spec, earlier = record.spec, self.store.finished_specs(record.owner)
        count = num_images(spec, self.image_counts)
        is_known = self.speeds.known and self.cards.knows(spec.model)
        if not isinstance(task, Measurement) or count is None or not is_known:
            return ()
        return self.speeds.run_steps(spec, self.cards.card(spec.model).profile, count, load=load, earlier=earlier)

    def _follow(self, record: RunRecord, result: RunResult, context: TaskContext) -> None:
        """Make what follows a run, as a part of it; Unfinished where it fails, as the run without it is complete."""
        follows = self.speeds.follows(record.spec, result.profile, result.num_samples)
        if follows == "nothing":
            return
        task: RunTask = RecommendationTask(run_id=record.run_id)
        if follows == "file":
            task = original_in_int8(record.run_id, METRICS[result.judged_by].tolerable, target=record.spec.target)
        try:
            check_run_room(self.disk_use(record.owner))
            self._carry_out(task, context, device=record.spec.sensitivity.device)
        except (JobCancelled, StorageFailed):
            raise
        except SenseError as error:
            raise Unfinished(f"All layers are measured. The files could not be made: {error}") from error

    def _carry_out(self, task: RunTask, context: TaskContext, *, device: str) -> None:
        """Carry out the task on the cluster, in a worker process, or in this process, whose memory has no limit."""
        own_session = isinstance(task, Measurement) and context.open_session is not open_local_session
        if isinstance(task, Measurement) and not own_session and task.cluster:
            carry_out_on_cluster(task, context, device=device, address=task.cluster)
        elif self.processes and not own_session:
            self.processes.carry_out(task, context, device=device)
        else:
            with memory_limit(limited=False):  # the pages need memory of this process too
                task.carry_out(context)

    def _keep_state(self, task: RunTask, snapshot: JobSnapshot) -> None:
        if isinstance(task, Measurement):
            error = (
                INTERRUPTED_SENTENCES[snapshot.done > 0] if snapshot.state is RunState.INTERRUPTED else snapshot.error
            )
            done, total = (snapshot.done, snapshot.total) if snapshot.total else (None, None)
            with suppress(NotFound):  # deleted before it ended
                self.store.set_state(task.run_id, snapshot.state, error=error, done=done, total=total)
        elif isinstance(task, FinishedRunTask) and snapshot.state in _TASK_ENDS:
            with suppress(NotFound):  # the run was deleted; the outcome of a task changes no run's state
                self.store.folder(task.run_id).end(task.key)


_shared: dict[Path, Backend] = {}
_shared_lock = threading.Lock()


def backend_at(home: Path) -> Backend:
    """Return this process's backend of ``home``, created on first use and closed when the process ends.

    Only this process uses the home. A page that was open before the server was started again finds its uploads. Raises
    StorageFailed if the home cannot be used, and InvalidSpec if a setting of the server is invalid.
    """
    key = home.expanduser().resolve()
    with _shared_lock:
        if key not in _shared:
            lock_home(key)
            backend = Backend(key, settings=ServerSettings.configured())
            sweep_uploads(key / "uploads", is_read=backend.reads_upload, at_start=True)
            _shared[key] = backend
            atexit.register(_shared[key].close)
        return _shared[key]


def close_backends() -> None:
    """Interrupt running and waiting jobs in all backends of this process; for servers that end without an atexit."""
    with _shared_lock:
        for backend in _shared.values():
            backend.close()
