"""Pool of worker processes that have loaded the engine."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from senseapp.core.errors import SenseError
from senseapp.server.machine import MachineSpeed
from senseapp.server.process.processes import CANCEL_SECONDS, JobProcess, answer_in, carry_out_in
from senseapp.server.process.requester import ANYBODY, Requester, Slots
from senseapp.server.tasks import RunTask, TaskContext

if TYPE_CHECKING:
    from senseapp.server.process.requester import WorkerRequest

AnswerT = TypeVar("AnswerT")

_MOST_ANSWERS = 100  # of one process, which then ends: 200 kB leak per file
_ANSWER_SECONDS = 1.0  # for which work waits for a process with the engine loaded that answers a request


class JobProcesses:
    """Assigns processes, each to one piece of work at a time; keeps at most ``most`` that have nothing to do."""

    def __init__(self, most: int = 1, start: Callable[[], JobProcess] = JobProcess) -> None:
        self._most = most
        self._start = start
        self._lock = threading.Lock()
        self._returned = threading.Condition(self._lock)
        self._slots = Slots(4, 2)  # requests at a time, as each takes memory, and those of one person
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
            if not self._closed and len(self._idle) < self._most:
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
        process, done = self._take(lambda: context.observer.phase("")), False
        try:
            carry_out_in(process, task, context, device=device)
            done = True
        finally:
            self._give_back(process, done)

    def answer(self, request: WorkerRequest[AnswerT], requester: Requester = ANYBODY) -> AnswerT:
        """Answer a request in one of the processes, see :func:`answer_in`; may wait."""
        with self._slots.hold(requester, request.subject):
            process = self._take(lambda: requester.check(request.subject), request)
            try:
                return answer_in(process, request, requester=requester)
            finally:
                process.answered += 1
                self._give_back(process, process.alive)

    def close(self) -> None:
        """End all processes, busy ones included."""
        with self._lock:
            self._closed = True
            ended = [*self._idle, *self._busy]
            self._idle.clear()
        for process in ended:
            process.close()

    def _take(self, check: Callable[[], None], request: WorkerRequest[Any] | None = None) -> JobProcess:
        """Return the process that can begin soonest, for ``request`` or else for a task; ``check`` may raise to cancel.

        Most answers take less time than loading the engine, so this waits for a process that is answering, and a second
        after it has loaded the engine also for a new one, whichever is ready first. While none has loaded the engine, a
        request that does not need it gets a new process.
        """
        needs_engine, end = request is None or request.needs_engine, math.inf
        while True:
            with self._lock:
                is_ready = any(process.alive and process.warm.is_set() for process in self._idle)
                answering = [process for process in self._answering if process.alive]
                if is_ready or not answering or not needs_engine:
                    process = self._take_one() if is_ready or needs_engine else self._start()
                    self._busy.add(process)
                    if request is not None and needs_engine:
                        self._answering.add(process)
                    return process
                if any(process.warm.is_set() for process in answering):
                    end = min(end, time.monotonic() + _ANSWER_SECONDS)
                if not self._idle and time.monotonic() > end:
                    self._start_ahead()
                self._returned.wait(CANCEL_SECONDS)
            check()

    def _take_one(self) -> JobProcess:
        """Return an idle process, preferably one with the engine loaded; else a new one."""
        for process in [process for process in self._idle if not process.alive]:
            self._idle.remove(process)
            process.close()
        if not self._idle:
            return self._start()
        process = max(self._idle, key=lambda each: each.warm.is_set())
        self._idle.remove(process)
        return process

    def _start_ahead(self) -> None:
        process = self._start()
        process.send("warm")
        self._idle.append(process)

    def _give_back(self, process: JobProcess, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            self._answering.discard(process)
            dropped = [process]
            if reusable and not self._closed and process.answered < _MOST_ANSWERS:
                kept = sorted([*self._idle, process], key=lambda each: (each.warm.is_set(), each.warms), reverse=True)
                self._idle, dropped = kept[: self._most], kept[self._most :]
            is_empty = not self._idle
            self._returned.notify_all()
        for each in dropped:
            each.close()
        with suppress(OSError, SenseError):  # not the work's error; the next work tries again
            if process.answered and process not in dropped and not process.warms:
                process.send("warm")
            if is_empty:
                self.warm_up()
