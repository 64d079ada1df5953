"""Pool of worker processes that have loaded the engine."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from senseapp.core.errors import SenseError
from senseapp.server.process.processes import CANCEL_SECONDS, JobProcess, answer_in, carry_out_in
from senseapp.server.process.requester import ANYBODY, AnswerT, Requester, Slots, WorkerRequest
from senseapp.server.tasks import RunTask, TaskContext

_MOST_ANSWERS = 100  # of one process, which then ends: 200 kB leak per file
_ANSWER_SECONDS = 1.0  # for which work waits for a process with the engine loaded that answers a request


class JobProcesses:
    """Assigns processes, each to one piece of work at a time; keeps at most ``most`` that have nothing to do."""

    def __init__(self, most: int = 1, start: Callable[[], JobProcess] = JobProcess) -> None:
        self._most = most
        self._start = start
        self._changed = threading.Condition()
        self._slots = Slots(4, 2)  # requests at a time, as each takes memory, and those of one person
        self._idle: list[JobProcess] = []
        self._busy: dict[JobProcess, bool] = {}  # whether it answers a request
        self._closed = False

    def pids(self) -> tuple[int, ...]:
        """Return the ids of the running processes."""
        with self._changed:
            return tuple(process.pid for process in (*self._idle, *self._busy) if process.alive)

    def warm_up(self) -> None:
        """Have a process with nothing to do that loads the engine; returns at once."""
        with self._changed:
            if not self._closed and not self._idle:
                self._idle.append(self._started())

    def carry_out(self, task: RunTask, context: TaskContext, *, device: str) -> None:
        """Carry out a task in one of the processes, see :func:`carry_out_in`."""
        with self._process(lambda: context.observer.phase(""), answers=False) as process:
            carry_out_in(process, task, context, device=device)

    def answer(self, request: WorkerRequest[AnswerT], requester: Requester = ANYBODY) -> AnswerT:
        """Answer a request in one of the processes, see :func:`answer_in`; may wait."""
        with (
            self._slots.hold(requester, request.subject),
            self._process(lambda: requester.check(request.subject), answers=True) as process,
        ):
            return answer_in(process, request, requester=requester)

    def close(self) -> None:
        """End all processes, busy ones included."""
        with self._changed:
            self._closed = True
            ended = [*self._idle, *self._busy]
            self._idle.clear()
        for process in ended:
            process.close()

    @contextmanager
    def _process(self, check: Callable[[], None], *, answers: bool) -> Iterator[JobProcess]:
        """Take a process, and give it back; one whose task was broken off is closed, as it may still be at work."""
        process, is_reusable = self._take(check, answers=answers), answers
        try:
            yield process
            is_reusable = True
        finally:
            process.answered += answers
            self._give_back(process, is_reusable and process.alive and process.answered < _MOST_ANSWERS)

    def _take(self, check: Callable[[], None], *, answers: bool) -> JobProcess:
        """Return the process that can begin soonest, a new one only after a second; ``check`` may raise."""
        end = time.monotonic() + _ANSWER_SECONDS
        while True:
            with self._changed:
                for process in [process for process in self._idle if not process.alive]:
                    self._idle.remove(process)
                    process.close()
                answering = [process for process, is_asked in self._busy.items() if is_asked and process.alive]
                found = next((process for process in self._idle if process.warm.is_set()), None)
                if found is None and not answering:
                    found = self._idle[0] if self._idle else self._started()
                if found is not None:
                    self._idle = [process for process in self._idle if process is not found]
                    self._busy[found] = answers
                    return found
                if not self._idle and time.monotonic() > end and any(each.warm.is_set() for each in answering):
                    self._idle.append(self._started())
                self._changed.wait(CANCEL_SECONDS)
            check()

    def _started(self) -> JobProcess:
        process = self._start()
        process.send("warm")
        return process

    def _give_back(self, process: JobProcess, is_reusable: bool) -> None:
        with self._changed:
            del self._busy[process]
            dropped = [process]
            if is_reusable and not self._closed:
                kept = sorted([*self._idle, process], key=lambda each: each.warm.is_set(), reverse=True)
                self._idle, dropped = kept[: self._most], kept[self._most :]
            self._changed.notify_all()
        for each in dropped:
            each.close()
        with suppress(OSError, SenseError):  # not the work's error; the next work tries again
            self.warm_up()
