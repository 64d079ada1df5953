"""What all visitors of one server share: the store, the job runner, and what running jobs have found so far."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from senseapp.errors import NotFound
from senseapp.jobs import JobControl, JobRunner
from senseapp.results import JobSnapshot, RunState, SensitivityResult
from senseapp.service.access import configured_data_roots, uploads_folder
from senseapp.service.engine import load_engine
from senseapp.service.execution import execute
from senseapp.service.headline import headline
from senseapp.service.live import LiveRun
from senseapp.service.machine_speed import SpeedBook, time_convolutions
from senseapp.service.model_cards import ModelCards
from senseapp.service.run_task import RunTask
from senseapp.service.session import OpenSession, open_engine_session
from senseapp.service.time_estimate import MachineSpeed, work_of
from senseapp.spec import DataSpec, RunSpec
from senseapp.store import INTERRUPTED_SENTENCE, RunStore

__all__ = ["Backend", "backend_at"]

_log = logging.getLogger(__name__)


class Backend:
    """One per process and senseapp home.

    Args:
        home: folder of the database and the runs; made if it is missing.
        open_session: prepares the engine for a run.
        data_roots: folders of the server that runs may read; None takes ``SENSEAPP_DATA_ROOTS``.
        workers: threads that measure; 0 for none, where ``runner.run_next()`` does the work.
        max_queue: most runs that may wait.
        calibrate: times this machine, on first use.

    Raises:
        StorageFailed: the home cannot be used.
        InvalidFile: a newer senseapp made its database.
    """

    def __init__(
        self,
        home: Path,
        *,
        open_session: OpenSession = open_engine_session,
        data_roots: tuple[Path, ...] | None = None,
        workers: int = 1,
        max_queue: int = 20,
        calibrate: Callable[[], MachineSpeed] = time_convolutions,
    ) -> None:
        self.home = home
        self.store = RunStore(home)
        self.store.recover()
        self.cards = ModelCards()
        self.speeds = SpeedBook(home / "speed.json", calibrate=calibrate)
        self._open_session = open_session
        self._data_roots = configured_data_roots() if data_roots is None else data_roots
        self._live: dict[str, LiveRun] = {}
        self._tasks: dict[str, RunTask] = {}
        self.image_counts: dict[DataSpec, int] = {}  # of the surveys made so far; classes left out are counted too
        self.looking = threading.Lock()  # one look at a model and its images at a time: each takes memory
        self._warming = threading.Lock()
        self.runner = JobRunner(self._work, on_change=self._keep_state, max_queue=max_queue, workers=workers)

    def readable_folders(self, owner: str) -> tuple[Path, ...]:
        """Return the folders that runs of ``owner`` may read files from."""
        return (*self._data_roots, uploads_folder(self.home, owner))

    def so_far(self, run_id: str) -> SensitivityResult | None:
        """Return the result of a run, or what it has found until now; None before its model was loaded.

        Raises:
            NotFound: there is no such run.
        """
        live = self._live.get(run_id)
        found = live.so_far() if live is not None else None
        return found or self.store.folder(run_id).so_far()

    def carry_out(self, task: RunTask) -> None:
        """Put work on a finished run in the queue; what waits or runs already stays where it is.

        Raises:
            QueueFull: too many jobs wait.
        """
        self._tasks[task.job_id] = task
        self.runner.submit(task.job_id)

    def cancel_tasks(self, run_id: str) -> None:
        """End all work on the finished run ``run_id``."""
        for job_id, task in list(self._tasks.items()):
            if task.run_id == run_id:
                self.runner.cancel(job_id)

    def warm_up(self) -> None:
        """Load torch and time this machine in the background; later calls do nothing."""
        if self._warming.acquire(blocking=False):  # never released: once is enough
            threading.Thread(target=self._warm_up, name="senseapp-warm-up", daemon=True).start()

    def close(self) -> None:
        """Interrupt what runs and waits; everything measured is already on the disk."""
        self.runner.close()

    def _warm_up(self) -> None:
        try:
            load_engine()
            self.speeds.calibrate()
        except Exception:
            _log.exception("the warm-up failed; the first run will show why")

    def _work(self, job_id: str, control: JobControl) -> None:
        task = self._tasks.get(job_id)
        if task is None:
            self._measure(job_id, control)
            return
        owner = self.store.record(task.run_id).owner
        folder = self.store.folder(task.run_id)
        task.carry_out(folder, progress=control.phase, data_roots=self.readable_folders(owner))

    def _measure(self, run_id: str, control: JobControl) -> None:
        record = self.store.record(run_id)
        live = LiveRun(control, on_plan=lambda done, total: self._keep_plan(run_id, done, total))
        self._live[run_id] = live
        try:
            result = execute(
                record.spec,
                self.store.folder(run_id),
                live,
                open_session=self._open_session,
                data_roots=self.readable_folders(record.owner),
            )
            self.store.set_headline(run_id, headline(result))
        finally:
            del self._live[run_id]
        self._learn(record.spec, result)

    def _learn(self, spec: RunSpec, result: SensitivityResult) -> None:
        self.cards.keep(spec.model, result.profile)
        members = {member for item in result.shown for member in item.members or (item.layer,)}
        work = work_of(result.profile, spec.sensitivity, num_images=result.num_samples, selected=members)
        self.speeds.learn(work, kind=kind_of(spec), seconds=result.seconds)

    def _keep_plan(self, run_id: str, done: int, total: int) -> None:
        self.store.set_state(run_id, RunState.RUNNING, done=done, total=total)

    def _keep_state(self, snapshot: JobSnapshot) -> None:
        if snapshot.run_id in self._tasks:  # its outcome is a file; a run keeps the state it had
            return
        interrupted = snapshot.state is RunState.INTERRUPTED
        known = {"done": snapshot.done, "total": snapshot.total} if snapshot.total else {}
        try:
            self.store.set_state(
                snapshot.run_id,
                snapshot.state,
                error=INTERRUPTED_SENTENCE if interrupted else snapshot.error,
                done=known.get("done"),
                total=known.get("total"),
            )
        except NotFound:
            _log.info("run %s was deleted before it ended", snapshot.run_id)


def kind_of(spec: RunSpec) -> str:
    """Return what runs with alike speed have in common: model, compression, mode and precision."""
    settings = spec.sensitivity
    return "|".join((spec.model.title, settings.compression.kind, settings.mode, settings.precision, settings.device))


_shared: dict[Path, Backend] = {}
_shared_lock = threading.Lock()


def backend_at(home: Path) -> Backend:
    """Return this process's backend of ``home``, made on first use and closed when the process ends.

    Raises:
        StorageFailed: the home cannot be used.
    """
    key = home.expanduser().resolve()
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Backend(key)
            atexit.register(_shared[key].close)
        return _shared[key]
