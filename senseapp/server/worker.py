"""The job queue: places for jobs, a lane for short ones, turns of people, and cancellation."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from senseapp.core.errors import QueueFull, SenseError
from senseapp.records.jobs import JobSnapshot, RunState
from senseapp.server.job_progress import JobCancelled, JobControl, Unfinished
from senseapp.server.operations import during_run
from senseapp.server.tasks import RunTask

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0  # between checks whether a waiting job may start
_OVERDUE_SECONDS, _PATIENT_SECONDS = 10.0, 3.0  # of a short job that runs; of a job of another person that waits
_MOST_OVERTAKING = 2  # jobs beside overdue ones: each process takes memory


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    task: RunTask
    control: JobControl
    state: RunState = RunState.QUEUED
    error: str = ""
    short: bool = False
    person: str = ""  # whose it is; all are one person's where nobody logs in
    queued: float = 0.0
    cancelled: bool = False  # by a user; otherwise a stop comes from closing the runner


class JobRunner:
    """A bounded queue, and a thread for each place.

    There are places for any job, and further ones for short jobs. People take turns: nobody's second job goes before
    another's first; one person's jobs go in their order. A short job that turns out to be long, as a hostile file makes
    it, keeps nobody else waiting: it does not count among the taken places for a person who has no job running.

    Args:
        work: carries out a task, and reports through its control; any exception ends the job, never the runner.
        on_change: receives each change of state (not of progress), in the thread that caused it; may raise.
        max_queue: most jobs that may wait.
        workers: places for any job; 0 for none, where :meth:`run_next` does the work in the caller's thread.
        short_workers: further places, for short jobs only; if any, jobs may start beside overdue ones of other people.
        may_run_short: whether a job may start beside others now, for example whether there is memory for it.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        work: Callable[[RunTask, JobControl], None],
        *,
        on_change: Callable[[RunTask, JobSnapshot], None] = lambda task, snapshot: None,
        max_queue: int = 20,
        workers: int = 1,
        short_workers: int = 0,
        may_run_short: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._on_change = on_change
        self._max_queue = max_queue
        self._workers, self._short_workers = workers, short_workers
        self._most_overtaking = _MOST_OVERTAKING if short_workers else 0
        self._may_run_short = may_run_short
        self._clock = clock
        self._changed = threading.Condition()
        self._jobs: dict[str, _Job] = {}  # in the order in which they came
        self._closed = False
        self._turns = Counter[str]()  # of people: how many jobs had begun when their last one did
        self._threads = [
            threading.Thread(target=self._work_on, name="senseapp-worker", daemon=True)
            for _ in range(workers + short_workers + self._most_overtaking if workers else 0)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: RunTask, *, short: bool = False, person: str = "") -> JobSnapshot:
        """Append a task of ``person`` to the queue; one that waits or runs already keeps its place.

        A ``short`` one is expected to take less than about a minute. A person may fill most of the queue.
        """
        with self._changed:
            known = self._jobs.get(task.job_id)
            if known is None or known.control.ended is not None:  # its end may be in the process of being stored
                self._refuse_if_full(person)
                self._jobs.pop(task.job_id, None)
                control = JobControl(self._changed, self._clock)
                job = _Job(task=task, short=short, person=person, queued=self._clock(), control=control)
                self._jobs[task.job_id] = job
                finished = [job_id for job_id, job in self._jobs.items() if job.state.finished]
                for job_id in finished[: max(0, len(finished) - 100)]:  # these are in the store only
                    del self._jobs[job_id]
                self._changed.notify_all()
            return self._snapshot(self._jobs[task.job_id])

    def snapshot(self, job_id: str) -> JobSnapshot | None:
        """Return a snapshot of a job, or None if it is not (or no longer) known here."""
        with self._changed:
            job = self._jobs.get(job_id)
            return None if job is None else self._snapshot(job)

    def unfinished(self) -> list[RunTask]:
        """Return the tasks that wait or run."""
        with self._changed:
            return [job.task for job in self._jobs.values() if not job.state.finished]

    def load(self) -> tuple[int, int]:
        """Return the numbers of running and of waiting jobs."""
        with self._changed:
            return len(self._jobs_in(RunState.RUNNING)), len(self._jobs_in(RunState.QUEUED))

    def cancel(self, job_id: str) -> bool:
        """Request that a job ends; a waiting one ends at once. Returns whether there was a job to end."""
        with self._changed:
            job = self._jobs.get(job_id)
            if job is None or job.state.finished:
                return False
            job.cancelled = True
            job.control.stop.set()
            if waiting := job in self._jobs_in(RunState.QUEUED):
                job.control.ended = self._clock()
        if waiting:
            self._finish(job, RunState.CANCELLED)
        return True

    def run_next(self) -> bool:
        """Carry out the next waiting job in this thread; return False if none waits."""
        with self._changed:
            if not self._jobs_in(RunState.QUEUED):
                return False
            job = self._begin(self._in_turn()[0])
        self._run(job)
        return True

    def close(self, timeout_seconds: float = 2.5) -> None:
        """Accept no more jobs, interrupt running ones, and wait briefly for these.

        Those that wait, or are inside a long step, are marked as interrupted at the next start.
        """
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                job.control.stop.set()
            self._changed.notify_all()
        deadline = self._clock() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))

    def _refuse_if_full(self, person: str) -> None:
        if self._closed:
            raise QueueFull("senseapp is shutting down and takes no new runs. Try again once it is back.")
        waiting, most_own = self._jobs_in(RunState.QUEUED), max(2, 0.75 * self._max_queue)
        if len(waiting) >= self._max_queue:
            raise QueueFull(
                f"At most {self._max_queue} runs may wait, and that many do. Try again when one has finished."
            )
        if person and sum(job.person == person for job in waiting) >= most_own:
            raise QueueFull(f"At most {most_own:.0f} of your runs may wait, and that many do. Try again later.")

    def _work_on(self) -> None:
        """Carry out one job after the other, each as soon as there is a place for it, until the runner is closed."""
        while True:
            with self._changed:
                while not self._closed and (job := self._startable()) is None:
                    self._changed.wait(_LOOK_SECONDS if self._jobs_in(RunState.QUEUED) else None)
                if self._closed or job is None:
                    return
                self._begin(job)
            self._run(job)

    def _startable(self) -> _Job | None:
        """Return the next job for which there is a place."""
        now, waiting, running = self._clock(), self._in_turn(), self._jobs_in(RunState.RUNNING)
        if not waiting:
            return None
        has_memory, busy = self._may_run_short(), {job.person for job in running}
        num_long = sum(not job.short for job in running)
        overdue = sum(job.short and job.control.elapsed(now) > _OVERDUE_SECONDS for job in running)
        for job in waiting:
            overtakes = has_memory and job.person not in busy and now - job.queued > _PATIENT_SECONDS
            taken = len(running) - (min(overdue, self._most_overtaking) if overtakes else 0)
            places = self._workers + (self._short_workers if has_memory or not job.short else 0)
            if taken < places and (job.short or num_long < self._workers):
                return job
        return None

    def _in_turn(self) -> list[_Job]:
        """Return the waiting jobs in the order in which they are taken: first of who has none, then of who had none."""
        places = Counter(job.person for job in self._jobs_in(RunState.RUNNING))
        turns: list[tuple[int, int, _Job]] = []
        for job in self._jobs_in(RunState.QUEUED):
            turns.append((places[job.person], self._turns[job.person], job))
            places[job.person] += 1
        return [job for *_, job in sorted(turns, key=lambda each: each[:2])]

    def _jobs_in(self, state: RunState) -> list[_Job]:
        return [job for job in self._jobs.values() if job.state is state and job.control.ended is None]

    def _begin(self, job: _Job) -> _Job:
        self._turns[job.person] = max(self._turns.values(), default=0) + 1
        job.state = RunState.RUNNING
        job.control.start()
        return job

    def _run(self, job: _Job) -> None:
        with self._changed:
            begun = self._snapshot(job)
        self._tell(job, begun)
        run_id = job.task.job_id.split(":")[0]
        with during_run(run_id):
            state, error = RunState.DONE, ""
            try:
                job.control.check()
                self._work(job.task, job.control)
            except JobCancelled:
                state = RunState.INTERRUPTED if self._closed and not job.cancelled else RunState.CANCELLED
            except (Unfinished, SenseError) as reason:
                state = RunState.DONE if isinstance(reason, Unfinished) else RunState.FAILED
                error = str(reason)
                _log.warning("run %s, %s: %s", run_id, state, error, exc_info=True)
            except BaseException:  # includes SystemExit of a library
                _log.exception("run %s failed", run_id)
                state = RunState.FAILED
                error = f"Something went wrong inside senseapp (run {run_id[:8]}); the log has the details."
            self._finish(job, state, error)

    def _finish(self, job: _Job, state: RunState, error: str = "") -> None:
        """Store the state before changing it in memory, so that both agree for a reader."""
        with self._changed:
            job.control.ended = self._clock()
            final = replace(self._snapshot(job), state=state, error=error, remaining_seconds=None)
        self._tell(job, final)
        with self._changed:
            job.state, job.error = state, error
            self._changed.notify_all()

    def _tell(self, job: _Job, snapshot: JobSnapshot) -> None:
        try:
            self._on_change(job.task, snapshot)
        except Exception:  # a full disk must not stop the worker; the state in memory stays correct
            _log.exception("run %s: its state %s could not be stored", snapshot.run_id, snapshot.state)

    def _snapshot(self, job: _Job) -> JobSnapshot:
        progress = job.control
        now = progress.move()
        lane = [other for other in self._in_turn() if not self._short_workers or other.short == job.short]
        blocking = self._blocking(job, now) if job in lane else None
        return JobSnapshot(
            run_id=job.task.job_id,
            state=job.state,
            phase=progress.doing,
            detail=progress.detail,
            share=progress.fraction,
            done=progress.done,
            total=progress.total,
            elapsed_seconds=progress.elapsed(now),
            remaining_seconds=progress.remaining(now) if job.state is RunState.RUNNING else None,
            queue_place=lane.index(job) + 1 if job in lane else 0,
            behind="" if blocking is None else blocking.task.job_id,
            behind_seconds=None if blocking is None else blocking.control.remaining(now),
            error=job.error,
        )

    def _blocking(self, job: _Job, now: float) -> _Job | None:
        """Return the running job that blocks a waiting one: of its lane, the one predicted to end first."""

        def left(running: _Job) -> float:
            seconds = running.control.remaining(now)
            return math.inf if seconds is None else seconds

        at_work = self._jobs_in(RunState.RUNNING)
        return min([one for one in at_work if one.short == job.short] or at_work, key=left, default=None)
