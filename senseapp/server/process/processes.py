"""Worker processes of the app, the exchange of messages with one, and the pool of those that loaded the engine."""

import logging
import math
import os
import queue
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import psutil

import senseapp.core.errors as known_errors
from senseapp.core.codec import decode, to_plain
from senseapp.core.errors import ClusterFailed, ProcessLost, ReadingStopped, SenseError
from senseapp.core.process import QUIET_FILE, ChildProcess, measuring_environment, read_line, write_line
from senseapp.records.measurement import LayerMeasurement, RunResult
from senseapp.server.process.requester import ANYBODY, AnswerT, Line, Requester, WorkerRequest, encode_task, stopped
from senseapp.server.tasks import RunTask, TaskContext

_log = logging.getLogger(__name__)
CANCEL_SECONDS = 0.25  # interval of checks for a cancel while no message comes
MOST_DELAY = 4
"""Limit of a request's wall time, as a multiple of its processor time, where other processes are busy."""
_LEAVE_SECONDS = 2.0  # a server has five seconds for its whole shutdown
_HEAD_LOST_SECONDS = "20"  # Ray's default timeout for an unresponsive head is a minute
_PREFIX = "senseapp-"  # of temporary folders
_KEPT = "What was measured is kept"


class JobProcess(ChildProcess):
    """One worker process."""

    program: ClassVar[tuple[str, ...]] = ("-m", "senseapp.server.process.child")

    def __init__(self) -> None:
        self.warm = threading.Event()  # set once the engine is loaded, or cannot be
        self.answered = 0  # number of requests
        self._lines: queue.Queue[Line | None] = queue.Queue()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._temporary = tempfile.mkdtemp(dir=_own_folder().name)  # a process that is killed leaves its files there
        super().__init__(*self.program, errors=self._errors, environment=environment_of_jobs(self._temporary))
        threading.Thread(target=self._listen, name="senseapp-job-process", daemon=True).start()

    @property
    def processor_seconds(self) -> float:
        """Processor time of the process since it started; 0 once it has ended."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def send(self, kind: str, body: Any = None) -> None:
        """Send a message; raises SenseError where the process has ended."""
        try:
            write_line(self.requests, [kind, body])
            self.requests.flush()
        except (OSError, ValueError) as error:  # gone, or closed by us
            raise self._lost() from error

    def receive(self, *wanted: str, progress: Callable[[str], None]) -> Line:
        """Return the next message of one of the ``wanted`` kinds; others are handled meanwhile.

        ``progress`` receives each step as it begins, and several times a second "" for nothing new; it may raise. A
        refusal by the process, and its loss, is raised as a SenseError; an unexpected error as a RuntimeError.
        """
        while True:
            try:
                line = self._lines.get(timeout=CANCEL_SECONDS)
            except queue.Empty:
                progress("")  # may raise to cancel
                continue
            if line is None:
                self._lines.put(None)  # end marker for the next reader
                raise self._lost()
            if line.kind in wanted:
                return line
            self._deal_with(line, progress)

    def close(self) -> None:
        """End the process, also if it is busy, and remove its temporary files."""
        self.end(_LEAVE_SECONDS)
        self._errors.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _deal_with(self, line: Line, progress: Callable[[str], None]) -> None:
        if line.kind == "phase":
            progress(str(line.body))
        elif line.kind == "log":
            name, level, message = line.body
            logging.getLogger(name).log(level, "%s", message)
        elif line.kind == "refused":
            name, sentence = line.body
            kind = getattr(known_errors, name, SenseError)
            raise (SenseError if kind is known_errors.InfeasibleBudget else kind)(sentence)
        else:
            raise RuntimeError(f"the process that works for the app failed:\n{line.body}")

    def _lost(self) -> ProcessLost:
        status = self.end(_LEAVE_SECONDS)
        if not self._errors.closed:
            self._errors.seek(0)
            said = self._errors.read()[-4000:].decode("utf-8", "replace")
            _log.error("the process that works for the app ended with status %d: %s", status, said)
        if status == -signal.SIGKILL:
            reason, advice = (
                "was killed, most often because memory ran out",
                "with fewer images or a smaller input size",
            )
        else:
            reason, advice = f"ended unexpectedly (status {status})", "with other settings if it happens again"
        return ProcessLost(f"The process that did this work {reason}. {_KEPT}: try again, {advice}.")

    def _listen(self) -> None:
        with self.answers as answers, suppress(EOFError):
            while True:
                line = Line(*read_line(answers))
                if line.kind == "warm":
                    self.warm.set()
                else:
                    self._lines.put(line)
        self.warm.set()
        self._lines.put(None)


@cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of this server's locks, by which its processes pause for each other, and of their files."""
    return tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-")


def remove_left_over() -> None:
    """Remove the folders of servers that were killed; ids of processes recur, in a container at each start."""
    own = Path(_own_folder().name)
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = path.name.removeprefix(_PREFIX).split("-")[0]
        is_over = pid.isdecimal() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid)))
        if is_over and path != own:
            shutil.rmtree(path, ignore_errors=True)


def environment_of_jobs(temporary: str) -> dict[str, str]:
    """Return the environment of a worker process, with its folder of ``temporary`` files."""
    own = {QUIET_FILE: str(Path(_own_folder().name) / "quiet"), "TMPDIR": temporary}
    return {"RAY_gcs_rpc_server_reconnect_timeout_s": _HEAD_LOST_SECONDS} | measuring_environment() | own


def carry_out_in(process: JobProcess, task: RunTask, context: TaskContext, *, device: str, address: str = "") -> None:
    """Carry out the task in the idle ``process``; its outcome is stored in the folder.

    The process opens sessions in its own way; everything else of ``context`` applies. On the processor of this machine
    (``device``) memory is limited; ``address`` is that of the cluster that measures, empty for this machine. Raises as
    :meth:`JobProcess.receive` does; ReadingStopped where the process of a task without measurements ends by itself.
    """
    given = {"folder": context.folder.path, "data_roots": context.data_roots, "earlier": context.earlier}
    process.send("task", {"task": encode_task(task), "device": device, "address": address} | to_plain(given))
    observer = context.observer
    tell: dict[str, Callable[[Any], None]] = {
        "opened": lambda body: observer.opened(decode(body[0], RunResult), **body[1]),
        "measured": lambda body: observer.measured(decode(body, LayerMeasurement)),
    }
    try:
        while (line := process.receive("done", *tell, progress=observer.phase)).kind != "done":
            tell[line.kind](line.body)
    except ProcessLost as error:
        if not task.if_lost:
            raise
        raise ReadingStopped(task.if_lost) from error


def takes_too_long(*, elapsed: float, processor: float, limit: float) -> bool:
    """Return whether a request has used up its ``limit``, in seconds of processor time.

    If its process rarely gets a processor, or waits for a disk, the limit is ``MOST_DELAY`` times as much wall time.

    >>> [takes_too_long(elapsed=9, processor=spent, limit=8) for spent in (8.5, 2)]
    [True, False]
    """
    return elapsed > limit and (processor > limit or elapsed > MOST_DELAY * limit)


def answer_in(process: JobProcess, request: WorkerRequest[AnswerT], *, requester: Requester = ANYBODY) -> AnswerT:
    """Send a request to ``process``; end the process after a timeout or if the requester has left.

    Raises ReadingStopped where the process was busy for too long, or ended; Abandoned if the requester is gone.
    """
    begun, spent = math.inf, 0.0

    def watch(_: str) -> None:
        if requester.is_gone():
            process.kill()
            requester.check(request.subject)
        elapsed, processor = time.monotonic() - begun, process.processor_seconds - spent
        if takes_too_long(elapsed=elapsed, processor=processor, limit=request.seconds):
            process.kill()
            raise stopped(request.subject, request.seconds)

    try:
        process.send("warm")
        process.warm.wait()
        begun, spent = time.monotonic(), process.processor_seconds
        message = {"question": request.encoded(), "seconds": MOST_DELAY * request.seconds}
        process.send("question", message | {"most_bytes": request.memory_bytes})
        return request.decoded(process.receive("answer", progress=watch).body)
    except ProcessLost as error:
        raise ReadingStopped(
            f"{request.subject} ended the process that read it, most often because it needs more memory than there "
            "is. Try again, or choose another file."
        ) from error


def carry_out_on_cluster(task: RunTask, context: TaskContext, *, device: str, address: str) -> None:
    """Carry out a task on the cluster at ``address``, in a process that Ray may end if the cluster is lost."""
    with closing(JobProcess()) as process:
        try:
            carry_out_in(process, task, context, device=device, address=address)
        except ProcessLost as error:
            raise ClusterFailed(
                f"The connection to the cluster was lost. {_KEPT}: try again once it is back, or go on on this machine "
                "alone."
            ) from error


_MOST_ANSWERS = 100  # of one process, which then ends: 200 kB leak per file
_MOST_ASKED, _MOST_OF_ONE = 4, 2  # requests at a time, as each takes memory, and those of one person
_ANSWER_SECONDS = 1.0  # for which work waits for a process with the engine loaded that answers a request


class JobProcesses:
    """Assigns processes, each to one piece of work at a time; keeps at most ``most`` that have nothing to do.

    A hostile file keeps its process busy until its time limit. So that others do not wait for it, each user has a few
    of all requests that are answered at a time.
    """

    def __init__(self, most: int = 1, start: Callable[[], JobProcess] = JobProcess) -> None:
        self._most = most
        self._start = start
        self._changed = threading.Condition()
        self._idle: list[JobProcess] = []
        self._busy: dict[JobProcess, str | None] = {}  # whose request it answers; None for a task
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
        with self._process(lambda: context.observer.phase("")) as process:
            carry_out_in(process, task, context, device=device)

    def answer(self, request: WorkerRequest[AnswerT], requester: Requester = ANYBODY) -> AnswerT:
        """Answer a request in one of the processes, see :func:`answer_in`; may wait, until the requester has left."""
        with self._process(lambda: requester.check(request.subject), requester.person) as process:
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
    def _process(self, check: Callable[[], None], person: str | None = None) -> Iterator[JobProcess]:
        """Take a process for a request of ``person``, or a task, and give it back; meanwhile ``check`` may raise.

        One whose task was broken off is closed, as it may still be at work.
        """
        end, is_reusable = time.monotonic() + _ANSWER_SECONDS, person is not None
        while (process := self._taken(person, end)) is None:
            check()
        try:
            yield process
            is_reusable = True
        finally:
            process.answered += person is not None
            self._give_back(process, is_reusable and process.alive and process.answered < _MOST_ANSWERS)

    def _taken(self, person: str | None, end: float) -> JobProcess | None:
        """Return the process that can begin soonest, a new one only after ``end``; None after a moment without one."""
        with self._changed:
            for process in [process for process in self._idle if not process.alive]:
                self._idle.remove(process)
                process.close()
            asked = [each for each in self._busy.values() if each is not None]
            if person is None or (len(asked) < _MOST_ASKED and asked.count(person) < _MOST_OF_ONE):
                answering = [each for each, asker in self._busy.items() if asker is not None and each.alive]
                found = next((process for process in self._idle if process.warm.is_set()), None)
                if found is None and not answering:
                    found = self._idle[0] if self._idle else self._started()
                if found is not None:
                    self._idle = [process for process in self._idle if process is not found]
                    self._busy[found] = person
                    return found
                if not self._idle and time.monotonic() > end and any(each.warm.is_set() for each in answering):
                    self._idle.append(self._started())
            self._changed.wait(CANCEL_SECONDS)
            return None

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
