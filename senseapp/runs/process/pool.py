"""Processes kept at hand with the engine loaded, so that a run begins at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress

from senseapp.core.errors import SenseError
from senseapp.runs.process.process import JobProcess, cluster_lost
from senseapp.runs.process.tasks import carry_out_in
from senseapp.runs.tasks import RunTask, TaskContext


class JobProcesses:
    """Lends processes out, one piece of work each at a time.

    Args:
        most: processes that are kept while they have nothing to do.
        job_mb: see :class:`~senseapp.runs.memory.MemoryGuard`.
        start: starts a process.
    """

    def __init__(self, most: int = 1, job_mb: int = 0, start: Callable[[], JobProcess] = JobProcess) -> None:
        self._most = most
        self._job_mb = job_mb
        self._start = start
        self._lock = threading.Lock()
        self._idle: list[JobProcess] = []
        self._busy: set[JobProcess] = set()
        self._closed = False

    def pids(self) -> tuple[int, ...]:
        """Return the numbers of the processes that live now."""
        with self._lock:
            return tuple(process.pid for process in (*self._idle, *self._busy) if process.alive)

    def warm_up(self) -> None:
        """Start a process that has the engine loaded when it is first asked; returns at once."""
        with self._lock:
            if not self._closed and len(self._idle) < self._most:
                process = self._start()
                process.ask("warm")
                self._idle.append(process)

    def wait_until_warm(self) -> None:
        """Wait until the processes that have nothing to do have loaded the engine."""
        with self._lock:
            idle = list(self._idle)
        for process in idle:
            process.warm.wait()

    def carry_out(self, task: RunTask, context: TaskContext, *, device: str) -> None:
        """Do a task in one of the processes, see :func:`~senseapp.runs.process.tasks.carry_out_in`."""
        process, done = self._take(), False
        try:
            carry_out_in(process, task, context, device=device, job_mb=self._job_mb)
            done = True
        finally:
            self._give_back(process, done)

    def close(self) -> None:
        """End all processes, those at work too."""
        with self._lock:
            self._closed = True
            ended = [*self._idle, *self._busy]
            self._idle.clear()
        for process in ended:
            process.close()

    def _take(self) -> JobProcess:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    break
                process.close()
            else:
                process = self._start()
            self._busy.add(process)
            return process

    def _give_back(self, process: JobProcess, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            keep = reusable and not self._closed and len(self._idle) < self._most
            if keep:
                self._idle.append(process)
        if not keep:
            process.close()
            with suppress(
                OSError, SenseError
            ):  # what ended the work is told; the next piece starts one, or says why not
                self.warm_up()


def carry_out_on_cluster(task: RunTask, context: TaskContext, *, device: str, address: str) -> None:
    """Do a task on the cluster at ``address``, in a process that Ray may end when the cluster is gone."""
    with closing(JobProcess(cluster_lost)) as process:
        carry_out_in(process, task, context, device=device, address=address)
