"""Pool of worker processes that have loaded the engine."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from senseapp.core.errors import SenseError
from senseapp.server.process.processes import CANCEL_SECONDS, JobProcess, answer_in, carry_out_in
from senseapp.server.process.requester import ANYBODY, Requester, Slots
from senseapp.server.tasks import RunTask, TaskContext
from senseapp.server.time_estimate import MachineSpeed

if TYPE_CHECKING:
    from senseapp.server.process.requester import WorkerRequest

AnswerT = TypeVar("AnswerT")

_MOST_REQUESTS, _MOST_OF_ONE_PERSON = 4, 2  # at a time, as each takes memory
_MOST_ANSWERS = 100  # of one process: libraries leak some 200 kB per file
_ANSWER_SECONDS = 1.0  # for which work waits for a process with the engine loaded that answers a request


class JobProcesses:
    """Assigns processes, each to one piece of work at a time.

    Args:
        most: processes that are kept while they have nothing to do.
        job_mb: see :class:`~senseapp.server.quotas.MemoryGuard`.
        start: starts a process.
    """

    def __init__(self, most: int = 1, job_mb: int = 0, start: Callable[[], JobProcess] = JobProcess) -> None:
        self._most = most
        self._job_mb = job_mb
        self._start = start
        self._lock = threading.Lock()
        self._returned = threading.Condition(self._lock)
        self._slots = Slots(_MOST_REQUESTS, _MOST_OF_ONE_PERSON)
        self._idle: list[JobProcess] = []
        self._busy: set[JobProcess] = set()
        self._answering: set[JobProcess] = set()  # busy processes that answer requests
        self._closed = False

    def pids(self) -> tuple[int, ...]:
        """Return the ids of the running processes."""
        with self._lock:
            return tuple(process.pid for process in (*self._idle, *self._busy) if process.alive)

    def warm_up(self) -> None:
        """Start a process and load the engine in it; returns at once."""
        with self._lock:
            if not self._closed and sum(process.successor is None for process in self._idle) < self._most:
                self._start_ahead()

    def machine_speed(self) -> MachineSpeed | None:
        """Return the speed of this machine, once a process has loaded the engine; None if none will."""
        with self._lock:
            known = [process for process in (*self._idle, *self._busy) if process.warms]
        for process in known:
            process.warm.wait()
        return next((process.speed for process in known if process.speed), None)

    def carry_out(self, task: RunTask, context: TaskContext, *, device: str) -> None:
        """Carry out a task in one of the processes, see :func:`carry_out_in`."""
        self._wait_for_answers(context.observer.phase)
        process, done = self._take(), False
        try:
            carry_out_in(process, task, context, device=device, job_mb=self._job_mb)
            done = True
        finally:
            self._give_back(process, done)

    def answer(self, request: WorkerRequest[AnswerT], requester: Requester = ANYBODY) -> AnswerT:
        """Answer a request in one of the processes, see :func:`answer_in`; may wait."""
        with self._slots.hold(requester, request.subject):
            process = self._take_for_answer(requester, request)
            process.answered += 1
            try:
                return answer_in(process, request, requester=requester, job_mb=self._job_mb)
            finally:
                self._give_back(process, process.alive)

    def close(self) -> None:
        """End all processes, busy ones included."""
        with self._lock:
            self._closed = True
            ended = [*self._idle, *self._busy]
            self._idle.clear()
        for process in ended:
            process.close()

    def _wait_for_answers(self, progress: Callable[[str], None]) -> None:
        """Wait for a process that answers a request: it is free sooner than another can load the engine."""
        end = math.inf
        while True:
            with self._lock:
                answering = [process for process in self._answering if process.alive]
                if self._idle or not answering or time.monotonic() > end:
                    return
                if any(process.warm.is_set() for process in answering):
                    end = min(end, time.monotonic() + _ANSWER_SECONDS)
                self._returned.wait(CANCEL_SECONDS)
            progress("")  # may raise to cancel

    def _take_for_answer(self, requester: Requester, request: WorkerRequest[Any]) -> JobProcess:
        """Return the process that can answer soonest.

        Most answers take less time than loading the engine, so this waits for a busy process, and after a second also
        for a new one, whichever is ready first. While none has loaded it, a request that does not need the engine gets
        a new process.
        """
        alone_until = time.monotonic() + _ANSWER_SECONDS
        while True:
            with self._lock:
                ready = any(process.alive and process.warm.is_set() for process in self._idle)
                if ready or not any(process.alive and process.warm.is_set() for process in self._answering):
                    if not ready and not request.needs_engine:
                        return self._start_busy()  # is not among those asked, since no work waits for it
                    process = self._take_one()
                    self._answering.add(process)
                    return process
                if not self._idle and time.monotonic() > alone_until:
                    self._start_ahead()
                self._returned.wait(CANCEL_SECONDS)
            requester.check(request.subject)

    def _take(self) -> JobProcess:
        with self._lock:
            return self._take_one()

    def _take_one(self) -> JobProcess:
        while self._idle:
            process = self._idle.pop(self._best_place())
            if process.alive:
                break
            process.close()
        else:
            return self._start_busy()
        self._busy.add(process)
        return process

    def _start_busy(self) -> JobProcess:
        process = self._start()
        self._busy.add(process)
        return process

    def _start_ahead(self) -> JobProcess:
        process = self._start()
        process.send("warm")
        self._idle.append(process)
        return process

    def _best_place(self) -> int:
        """Return the index of the last idle process, preferring a loaded engine, then no successor."""
        idle = self._idle
        return max(range(len(idle)), key=lambda at: (idle[at].warm.is_set(), idle[at].successor is None, at))

    def _give_back(self, process: JobProcess, reusable: bool) -> None:
        dropped: list[JobProcess] = []
        with self._lock:
            self._busy.discard(process)
            self._answering.discard(process)
            if (successor := process.successor) is None:
                spare = self._spare() if reusable and process.warm.is_set() else None
                if spare is not None:
                    self._idle.remove(spare)
                    dropped.append(spare)
                keep = sum(other.successor is None for other in self._idle) < self._most
            else:
                keep = not successor.warm.is_set()
            if keep := keep and reusable and not self._closed:
                self._idle.append(process)
            self._returned.notify_all()
        for ended in dropped if keep else (*dropped, process):
            ended.close()
        with suppress(OSError, SenseError):  # not the work's error; the next work tries again
            if not keep:
                self.warm_up()
            elif process.answered and not process.warms:
                process.send("warm")
            elif process.answered >= _MOST_ANSWERS and successor is None:
                self._replace(process)

    def _spare(self) -> JobProcess | None:
        """Return an idle process beyond the kept number that has not loaded the engine yet, if there is one."""
        following = [other.successor for other in (*self._idle, *self._busy)]
        staying = [other for other in self._idle if other.successor is None]
        cold = (other for other in staying if not other.warm.is_set() and other not in following)
        return next(cold, None) if len(staying) >= self._most else None

    def _replace(self, worn: JobProcess) -> None:
        """Start the successor of an idle process, which stays available until the successor has loaded the engine."""
        with self._lock:
            if worn not in self._idle or worn.successor:  # closed, or busy: replaced when it is returned
                return
            worn.successor = successor = self._start_ahead()
        threading.Thread(target=self._end_after, args=(worn, successor.warm), daemon=True).start()

    def _end_after(self, worn: JobProcess, warm: threading.Event) -> None:
        warm.wait()
        with self._lock:
            if worn not in self._idle:  # busy: ends when it is returned
                return
            self._idle.remove(worn)
        worn.close()
