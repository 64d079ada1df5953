"""Processes that work for the app: one, the messages exchanged with it, and those kept with the engine loaded."""

from __future__ import annotations

import logging
import math
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import senseapp.core.errors as known_errors
from senseapp.core.codec import decode, encode
from senseapp.core.errors import ClusterFailed, ProcessLost, ReadingStopped, SenseError
from senseapp.core.process import measuring_environment
from senseapp.core.quiet import QUIET_FILE
from senseapp.records.measurement import LayerMeasurement, SensitivityResult
from senseapp.runs.process.asking import ANYBODY, Asker, Slots
from senseapp.runs.process.protocol import Line, read_line, write_line
from senseapp.runs.tasks import EarlierRuns, RunObserver, RunTask, TaskContext
from senseapp.runs.time_estimate import MachineSpeed

if TYPE_CHECKING:
    from senseapp.runs.questions import Question

AnswerT = TypeVar("AnswerT")

_TOLD = ("opened", "estimated", "measured", "find", "taken", "done")
_log = logging.getLogger(__name__)
_ASK_SECONDS = 0.25  # how often a cancel is looked for while nothing is heard
_LEAVE_SECONDS = 2.0  # a server that is asked to end has five for everything
_HEAD_LOST_SECONDS = "20"  # Ray's own patience with a head that does not answer is a minute
_KEPT = "What was measured is kept"


def cluster_lost(status: int) -> ClusterFailed:
    """Return what to say of a process that talked to a cluster, and ended."""
    return ClusterFailed(
        f"The connection to the cluster was lost. {_KEPT}: try again once it is back, or go on on this machine alone."
    )


def process_lost(status: int) -> ProcessLost:
    """Return what to say of a process that worked on this machine, and ended with ``status``."""
    if status == -signal.SIGKILL:
        reason, advice = "was killed, most often because memory ran out", "with fewer images or a smaller input size"
    else:
        reason, advice = f"ended unexpectedly (status {status})", "with other settings if it happens again"
    return ProcessLost(f"The process that did this work {reason}. {_KEPT}: try again, {advice}.")


class JobProcess:
    """One such process.

    Args:
        lost: returns what to raise once the process has ended by itself, from its exit status (negative for a signal).
    """

    def __init__(self, lost: Callable[[int], SenseError] = process_lost) -> None:
        self.warm = threading.Event()  # set once the engine is loaded, or never will be
        self.warms = False  # whether it was asked to load the engine
        self.speed: MachineSpeed | None = None  # of this machine, known with that
        self.answered = 0  # questions
        self._lost_with = lost
        self._heard: queue.Queue[Line | None] = queue.Queue()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = _started(self._errors)
        threading.Thread(target=self._listen, name="senseapp-job-process", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it can be asked anything."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self._process.pid

    def ask(self, kind: str, body: Any = None) -> None:
        """Send a message.

        Raises:
            SenseError: the process has ended.
        """
        assert self._process.stdin is not None
        self.warms |= kind == "warm"
        try:
            write_line(self._process.stdin, kind, body)
        except (OSError, ValueError) as error:  # gone, or closed by us
            raise self._lost() from error

    def hear(self, *wanted: str, progress: Callable[[str], None]) -> Line:
        """Return the next message of a wanted kind; the others are dealt with on the way.

        ``progress`` is told what begins, and several times a second "" for nothing new; it may raise. What the process
        refuses, and its loss, is raised as a SenseError; what nobody foresaw as a RuntimeError.
        """
        while True:
            try:
                line = self._heard.get(timeout=_ASK_SECONDS)
            except queue.Empty:
                progress("")  # where a cancel takes effect
                continue
            if line is None:
                self._heard.put(None)  # for whoever asks next: nothing will be heard any more
                raise self._lost()
            if line.kind in wanted:
                return line
            self._deal_with(line, progress)

    def kill(self) -> None:
        """End the process at once; one that computes in C would not hear that it should."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._end()
        self._errors.close()

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

    def _end(self) -> int:
        """Return the exit status of the process, which ends by itself once it can hear nothing more."""
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.close()
            return process.wait(_LEAVE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            return process.wait()

    def _lost(self) -> SenseError:
        status = self._end()
        if not self._errors.closed:
            self._errors.seek(0)
            said = self._errors.read()[-4000:].decode("utf-8", "replace")
            _log.error("the process that works for the app ended with status %d: %s", status, said)
        return self._lost_with(status)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            while (line := read_line(answers)) is not None:
                if line.kind == "warm":
                    self.speed = decode(line.body, MachineSpeed)
                    self.warm.set()
                else:
                    self._heard.put(line)
        self.warm.set()
        self._heard.put(None)


@cache
def _folder_of_locks() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of the locks with which processes of this server leave each other quiet moments."""
    return tempfile.TemporaryDirectory(prefix="senseapp-")


def _started(errors: Any) -> subprocess.Popen[bytes]:
    environment = {"RAY_gcs_rpc_server_reconnect_timeout_s": _HEAD_LOST_SECONDS} | measuring_environment()
    environment[QUIET_FILE] = str(Path(_folder_of_locks().name) / "quiet")
    return subprocess.Popen(
        [sys.executable, "-m", "senseapp.runs.process.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        cwd=Path(__file__).parents[3],
        start_new_session=True,  # Ctrl-C is for the command line alone; it then closes this
    )


def carry_out_in(
    process: JobProcess, task: RunTask, context: TaskContext, *, device: str, address: str = "", job_mb: int = 0
) -> None:
    """Have ``process``, which does nothing else meanwhile, do the task; its outcome is in the folder.

    How a session is opened is for the process to know; everything else of ``context`` counts. The memory of runs on
    this machine's processor (``device``) is limited to ``job_mb``; ``address`` is that of the cluster that measures.
    Raises as :meth:`JobProcess.hear` does.
    """
    process.ask(
        "task",
        {
            "task": encode(task),
            "folder": str(context.folder.path),
            "data_roots": [str(root) for root in context.data_roots],
            "device": device,
            "address": address,
            "job_mb": job_mb,
        },
    )
    while (line := process.hear(*_TOLD, progress=context.observer.phase)).kind != "done":
        _pass_on(line, process, context.observer, context.earlier_runs)


def ask_in(process: JobProcess, question: Question[AnswerT], *, asker: Asker = ANYBODY, job_mb: int = 0) -> AnswerT:
    """Have ``process`` answer a question, and end it where that takes too long or nobody waits for it any more.

    Raises:
        ReadingStopped: the process was busy for too long, or ended; Abandoned where the asker is gone.
    """
    end = math.inf

    def watch(_: str) -> None:
        if asker.is_gone():
            process.kill()
            asker.check(question.subject)
        if time.monotonic() > end:
            process.kill()
            raise ReadingStopped(
                f"{question.subject} kept the process that reads it busy for {question.seconds:.0f} s, so it was "
                "stopped. Choose another file, or save this one again with the program that made it."
            )

    try:
        process.ask("warm")
        process.warm.wait()
        end = time.monotonic() + question.seconds
        request = {"question": encode(question), "seconds": question.seconds}
        process.ask("question", request | {"job_mb": job_mb, "most_bytes": question.memory_bytes})
        answer: AnswerT = decode(process.hear("answer", progress=watch).body, question.answer_type)
    except ProcessLost as error:
        raise ReadingStopped(
            f"{question.subject} ended the process that read it, most often because it needs more memory than there "
            "is. Try again, or choose another file."
        ) from error
    return answer


def _pass_on(line: Line, process: JobProcess, observer: RunObserver, earlier_runs: EarlierRuns) -> None:
    if line.kind == "opened":
        head, figures = line.body
        observer.opened(decode(head, SensitivityResult), **figures)
    elif line.kind == "estimated":
        observer.estimated(decode(line.body, LayerMeasurement))
    elif line.kind == "measured":
        observer.measured(decode(line.body, LayerMeasurement))
    elif line.kind == "find":
        found = earlier_runs.find(line.body)
        process.ask("answer", None if found is None else encode(found))
    else:
        process.ask("answer", encode(earlier_runs.taken(*line.body)))


_MOST_QUESTIONS, _MOST_OF_ONE_PERSON = 4, 2  # at a time: each takes memory
_MOST_ANSWERS = 100  # of one process: what libraries keep of each file is some 200 kB
_ANSWER_SECONDS = 1.0  # for which work waits for a process that answers a question with the engine loaded


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
        self._given_back = threading.Condition(self._lock)
        self._slots = Slots(_MOST_QUESTIONS, _MOST_OF_ONE_PERSON)
        self._idle: list[JobProcess] = []
        self._busy: set[JobProcess] = set()
        self._asked: set[JobProcess] = set()  # of the busy ones, those that answer questions
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

    def machine_speed(self) -> MachineSpeed | None:
        """Return how fast a process found this machine to be, once one has loaded the engine; None if none is to."""
        with self._lock:
            known = [process for process in (*self._idle, *self._busy) if process.warms]
        for process in known:
            process.warm.wait()
        return next((process.speed for process in known if process.speed), None)

    def carry_out(self, task: RunTask, context: TaskContext, *, device: str) -> None:
        """Do a task in one of the processes, see :func:`carry_out_in`."""
        self._wait_for_answers(context.observer.phase)
        process, done = self._take(), False
        try:
            carry_out_in(process, task, context, device=device, job_mb=self._job_mb)
            done = True
        finally:
            self._give_back(process, done)

    def answer(self, question: Question[AnswerT], asker: Asker = ANYBODY) -> AnswerT:
        """Answer a question in one of the processes, see :func:`ask_in`; may wait."""
        with self._slots.hold(asker, question.subject):
            process = self._take(asked=True)
            process.answered += 1
            try:
                return ask_in(process, question, asker=asker, job_mb=self._job_mb)
            finally:
                self._give_back(process, process.alive)

    def close(self) -> None:
        """End all processes, those at work too."""
        with self._lock:
            self._closed = True
            ended = [*self._idle, *self._busy]
            self._idle.clear()
        for process in ended:
            process.close()

    def _wait_for_answers(self, progress: Callable[[str], None]) -> None:
        """Wait for a process that is only asked something: it is free sooner than another has loaded the engine."""
        end = math.inf
        while True:
            with self._lock:
                asked = [process for process in self._asked if process.alive]
                if self._idle or not asked or time.monotonic() > end:
                    return
                if any(process.warm.is_set() for process in asked):
                    end = min(end, time.monotonic() + _ANSWER_SECONDS)
                self._given_back.wait(_ASK_SECONDS)
            progress("")  # where a cancel takes effect

    def _take(self, *, asked: bool = False) -> JobProcess:
        with self._lock:
            while self._idle:
                process = self._idle.pop(self._place_of_warm())
                if process.alive:
                    break
                process.close()
            else:
                process = self._start()
            self._busy.add(process)
            if asked:
                self._asked.add(process)
            return process

    def _place_of_warm(self) -> int:
        """Return the place among the idle of the last one that has the engine loaded, or of the last."""
        return max((place for place, process in enumerate(self._idle) if process.warm.is_set()), default=-1)

    def _give_back(self, process: JobProcess, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            self._asked.discard(process)
            keep = reusable and not self._closed and len(self._idle) < self._most
            keep = keep and process.answered < _MOST_ANSWERS
            if keep:
                self._idle.append(process)
            self._given_back.notify_all()
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
