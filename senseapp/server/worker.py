"""The job queue: worker threads, a lane for short jobs, turns of people, and cancellation."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from senseapp.core.errors import QueueFull, SenseError
from senseapp.records.jobs import JobSnapshot, RunState
from senseapp.server.job_progress import Bar, JobCancelled, JobControl, JobProgress, Unfinished

_log = logging.getLogger(__name__)
_LANE_LOOK_SECONDS = 1.0  # between checks whether a short job may start
_OVERDUE_SECONDS, _PATIENT_SECONDS = 10.0, 3.0  # of a short job that runs; of a job of another person that waits
_MOST_SHARE = 0.75  # of the queue, that one person may fill
_MOST_EXTRA = 2  # jobs that run beside overdue ones: each process takes memory


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    run_id: str
    progress: JobProgress
    state: RunState = RunState.QUEUED
    error: str = ""
    short: bool = False
    person: str = ""  # whose it is; all are one person's where nobody logs in
    queued: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    cancelled: bool = False  # by a user; otherwise a stop comes from closing the runner


class JobRunner:
    """A bounded queue and its worker threads, some of which may be kept for short jobs.

    A short job is done by a worker of the short lane; by another one only while those are all busy or closed. People
    take turns: nobody's second job goes before another's first; one person's jobs go in their order. A short job that
    turns out to be long, as a hostile file makes it, keeps nobody else waiting: further threads do their jobs.

    Args:
        work: carries out the job of a run id, and reports through its control; any exception ends the job, never the
            worker.
        on_change: receives each change of state (not of progress), in the thread that caused it; may raise.
        max_queue: most jobs that may wait.
        workers: threads for any job; 0 for none, where :meth:`run_next` does the work in the caller's thread.
        short_workers: further threads, for short jobs only.
        may_run_short: whether a short job may start beside others now, for example whether there is memory for it.
        overtakes: whether a job may start beside overdue ones of other people.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        work: Callable[[str, JobControl], None],
        *,
        on_change: Callable[[JobSnapshot], None] = lambda snapshot: None,
        max_queue: int = 20,
        workers: int = 1,
        short_workers: int = 0,
        may_run_short: Callable[[], bool] = lambda: True,
        overtakes: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._on_change = on_change
        self._max_queue = max_queue
        self._clock = clock
        self._may_run_short = may_run_short
        self._idle_short = 0  # workers of the short lane that wait for a job
        self._has_lane = short_workers > 0
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._closed = False
        self._extra = 0  # jobs beside overdue ones
        self._turns = Counter[str]()  # of people: how many jobs had begun when their last one did
        self._threads = [
            threading.Thread(target=self._serve, args=(short,), name=f"senseapp-{name}worker-{number}", daemon=True)
            for short, name, count in ((False, "", workers), (True, "short-", short_workers))
            for number in range(count)
        ]
        if overtakes:
            self._threads.append(threading.Thread(target=self._watch, name="senseapp-queue", daemon=True))
        for thread in self._threads:
            thread.start()

    def submit(self, run_id: str, *, short: bool = False, person: str = "") -> JobSnapshot:
        """Append a run of ``person`` to the queue; one that waits or runs already keeps its place.

        A ``short`` one is expected to take less than about a minute. A person may fill most of the queue.
        """
        with self._changed:
            known = self._jobs.get(run_id)
            if known is None or known.progress.ended is not None:  # its end may be in the process of being stored
                self._refuse_if_full(person)
                now = self._clock()
                waits = JobProgress(bar=Bar(begun=now, looked=now, doing="Waiting for its turn"))
                job = _Job(run_id=run_id, short=short, person=person, queued=now, progress=waits)
                self._jobs[run_id] = job
                self._jobs.move_to_end(run_id)
                self._waiting.append(job)
                self._forget_old()
                self._changed.notify_all()
            return self._snapshot(self._jobs[run_id])

    def snapshot(self, run_id: str) -> JobSnapshot | None:
        """Return a snapshot of a job, or None if it is not (or no longer) known here."""
        with self._changed:
            job = self._jobs.get(run_id)
            return None if job is None else self._snapshot(job)

    def load(self) -> tuple[int, int]:
        """Return the numbers of running and of waiting jobs."""
        with self._changed:
            return sum(job.state is RunState.RUNNING for job in self._jobs.values()), len(self._waiting)

    def cancel(self, run_id: str) -> bool:
        """Request that a job ends; a waiting one ends at once. Returns whether there was a job to end."""
        with self._changed:
            job = self._jobs.get(run_id)
            if job is None or job.state.finished:
                return False
            job.cancelled = True
            job.stop.set()
            waiting = job in self._waiting
            if waiting:
                self._waiting.remove(job)
        if waiting:
            self._finish(job, RunState.CANCELLED)
        return True

    def run_next(self) -> bool:
        """Carry out the next waiting job in this thread; return False if none waits."""
        with self._changed:
            job = self._start(self._in_turn()[0]) if self._waiting else None
        if job is None:
            return False
        self._tell(self._snapshot(job))
        self._run(job)
        return True

    def close(self, timeout_seconds: float = 2.5) -> None:
        """Accept no more jobs, interrupt waiting and running ones, and wait briefly for the workers."""
        with self._changed:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            for job in self._jobs.values():
                job.stop.set()
            self._changed.notify_all()
        for job in waiting:
            self._finish(job, RunState.INTERRUPTED)
        deadline = self._clock() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))
        if any(thread.is_alive() for thread in self._threads):
            self._give_up_the_rest()

    def _give_up_the_rest(self) -> None:
        """Report jobs inside a long step as interrupted, since the process ends before the step does."""
        with self._changed:
            late = [
                self._snapshot(job)
                for job in self._jobs.values()
                if job.state is RunState.RUNNING and job.progress.ended is None
            ]
        for snapshot in late:
            self._tell(replace(snapshot, state=RunState.INTERRUPTED, remaining_seconds=None))

    def _refuse_if_full(self, person: str) -> None:
        if self._closed:
            raise QueueFull("senseapp is shutting down and takes no new runs. Try again once it is back.")
        own, most_own = sum(job.person == person for job in self._waiting), max(2, _MOST_SHARE * self._max_queue)
        if len(self._waiting) >= self._max_queue:
            raise QueueFull(
                f"At most {self._max_queue} runs may wait, and that many do. Try again when one has finished."
            )
        if person and own >= most_own:
            raise QueueFull(f"At most {most_own:.0f} of your runs may wait, and that many do. Try again later.")

    def _forget_old(self) -> None:
        finished = [run_id for run_id, job in self._jobs.items() if job.state.finished]
        # The last hundred stay in memory; older ones are in the store only.
        for run_id in finished[: max(0, len(finished) - 100)]:
            del self._jobs[run_id]

    def _serve(self, short: bool) -> None:
        while (job := self._take(short)) is not None:
            self._run(job)

    def _take(self, short: bool) -> _Job | None:
        """Wait for the next job of a lane, and return it; None once the runner is closed."""
        with self._changed:
            self._idle_short += short
            while not self._closed:
                lane_open = self._may_run_short() if any(job.short for job in self._waiting) else True
                if (found := self._next(short, lane_open)) is not None:
                    break
                self._changed.wait(None if lane_open else _LANE_LOOK_SECONDS)
            self._idle_short -= short
            if self._closed or found is None:
                return None
            job = self._start(found)
            snapshot = self._snapshot(job)
        self._tell(snapshot)
        return job

    def _next(self, short: bool, lane_open: bool) -> _Job | None:
        if short:
            return next((job for job in self._in_turn() if job.short), None) if lane_open else None
        leaves_short = lane_open and self._idle_short
        return next((job for job in self._in_turn() if not (job.short and leaves_short)), None)

    def _in_turn(self) -> list[_Job]:
        """Return the waiting jobs in the order in which they are taken: first of who has none, then of who had none."""
        places = Counter(job.person for job in self._running())
        turns: list[tuple[int, int, _Job]] = []
        for job in self._waiting:
            turns.append((places[job.person], self._turns[job.person], job))
            places[job.person] += 1
        return [job for *_, job in sorted(turns, key=lambda each: each[:2])]

    def _running(self) -> list[_Job]:
        return [job for job in self._jobs.values() if job.state is RunState.RUNNING and job.progress.ended is None]

    def _watch(self) -> None:
        """Start threads for jobs that wait behind overdue ones."""
        while True:
            with self._changed:
                while not self._closed and (found := self._overtaking()) is None:
                    self._changed.wait(_LANE_LOOK_SECONDS if self._waiting else None)
                if self._closed or found is None:
                    return
                self._extra += 1
                job = self._start(found)
                snapshot = self._snapshot(job)
            self._tell(snapshot)
            threading.Thread(target=self._run_extra, args=(job,), name="senseapp-extra", daemon=True).start()

    def _run_extra(self, job: _Job) -> None:
        self._run(job)
        with self._changed:
            self._extra -= 1

    def _overtaking(self) -> _Job | None:
        """Return a job that waits behind overdue ones and whose person has none that runs."""
        now, running = self._clock(), self._running()
        overdue = sum(job.short and now - (job.progress.started or now) > _OVERDUE_SECONDS for job in running)
        if self._extra >= min(overdue, _MOST_EXTRA):
            return None
        busy = {job.person for job in running}
        found = (job for job in self._waiting if job.person not in busy and now - job.queued > _PATIENT_SECONDS)
        return next(found, None) if self._may_run_short() else None

    def _start(self, job: _Job) -> _Job:
        self._waiting.remove(job)
        self._turns[job.person] = max(self._turns.values(), default=0) + 1
        self._changed.notify_all()  # another worker may have left the next job to the one that is busy now
        job.state = RunState.RUNNING
        now = self._clock()
        job.progress = JobProgress(bar=Bar.started(now), started=now)
        return job

    def _run(self, job: _Job) -> None:
        def update(change: Callable[[JobProgress], JobProgress]) -> None:
            with self._changed:
                job.progress = change(job.progress)

        control = JobControl(job.stop, update, self._clock)
        try:
            control.check()
            self._work(job.run_id, control)
        except JobCancelled:
            self._finish(job, RunState.INTERRUPTED if self._closed and not job.cancelled else RunState.CANCELLED)
        except Unfinished as error:
            _log.warning("run %s: %s", job.run_id, error, exc_info=True, extra=_about(job.run_id))
            self._finish(job, RunState.DONE, str(error))
        except SenseError as error:
            _log.warning("run %s failed: %s", job.run_id, error, exc_info=True, extra=_about(job.run_id))
            self._finish(job, RunState.FAILED, str(error))
        except BaseException:  # includes SystemExit of a library: the worker must survive for the next job
            _log.exception("run %s failed", job.run_id, extra=_about(job.run_id))
            sentence = f"Something went wrong inside senseapp (run {job.run_id[:8]}); the log has the details."
            self._finish(job, RunState.FAILED, sentence)
        else:
            self._finish(job, RunState.DONE)

    def _finish(self, job: _Job, state: RunState, error: str = "") -> None:
        """Store the state before changing it in memory, so that both agree for a reader."""
        with self._changed:
            job.progress = replace(job.progress, ended=self._clock())
            final = replace(self._snapshot(job), state=state, error=error, remaining_seconds=None)
        self._tell(final)
        with self._changed:
            job.state, job.error = state, error

    def _tell(self, snapshot: JobSnapshot) -> None:
        try:
            self._on_change(snapshot)
        except Exception:  # a full disk must not stop the worker; the state in memory stays correct
            _log.exception("run %s: its state %s could not be stored", snapshot.run_id, snapshot.state)

    def _snapshot(self, job: _Job) -> JobSnapshot:
        now, progress = self._clock(), job.progress
        lane = [other for other in self._in_turn() if not self._has_lane or other.short == job.short]
        running = self._blocking(job) if job in lane else None
        return JobSnapshot(
            run_id=job.run_id,
            state=job.state,
            phase=progress.bar.doing,
            detail=progress.bar.detail,
            share=progress.bar.advanced(now).fraction if progress.started is not None else 0.0,
            done=progress.done,
            total=progress.total,
            elapsed_seconds=progress.elapsed(now),
            remaining_seconds=progress.remaining(now) if job.state is RunState.RUNNING else None,
            queue_place=lane.index(job) + 1 if job in lane else 0,
            behind="" if running is None else running.run_id,
            behind_seconds=None if running is None else running.progress.remaining(now),
            error=job.error,
        )

    def _blocking(self, job: _Job) -> _Job | None:
        """Return the running job that blocks a waiting one: of its lane, the one predicted to end first."""
        at_work = self._running()
        lane = [one for one in at_work if one.short == job.short] or at_work
        left = {one.run_id: one.progress.remaining(self._clock()) for one in lane}
        return min(
            lane, key=lambda one: math.inf if left[one.run_id] is None else left[one.run_id] or 0.0, default=None
        )


def _about(job_id: str) -> dict[str, str]:
    """Return the run that a log record is about; ids of jobs begin with that of their run."""
    return {"run": job_id.split(":")[0]}
