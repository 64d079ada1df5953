"""The process that works for the app: ``python -m senseapp.service.job_process.child``, started by the app.

It opens a session or carries out a task, and tells what it finds line by line; then it waits to be asked again. The
interpreter that makes the pages is not the one that measures, and what takes too much memory, or crashes in a library,
takes only this process with it. So does Ray, which ends the process that asks when the head of its cluster is gone.
It ends when the app does.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from senseapp.errors import SenseError
from senseapp.leftovers import LEFTOVERS
from senseapp.results import LayerMeasurement, SensitivityResult
from senseapp.service.engine import load_engine, runs_on_processor
from senseapp.service.job_process.messages import Line, read_line, write_line
from senseapp.service.job_process.tasks import decode_task
from senseapp.service.memory import MemoryGuard
from senseapp.spec import RunSpec
from senseapp.spec.codec import decode, encode
from senseapp.store import RunFolder

if TYPE_CHECKING:
    from senseapp.sensitivity import Session
    from senseapp.sensitivity.executor import Executor


_ORPHANED = 3
_IDLE_SECONDS = 60.0  # for which memory is kept: to fault it in anew takes a histogram .3 to 2.4 s
_MOST_AHEAD = 1  # findings on their way to the disk; while one is stored the next is measured, and then waits


class _Conversation(logging.Handler):
    """Answers the app's questions, in the order in which they come, and passes on what is logged meanwhile."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        super().__init__(logging.INFO)
        self._answers = answers
        self._saying = threading.Lock()
        self._questions: queue.Queue[Line] = queue.Queue()
        self._room = threading.Semaphore(_MOST_AHEAD)
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()

    def say(self, kind: str, body: object = None) -> None:
        with self._saying:
            write_line(self._answers, kind, body)

    def phase(self, sentence: str) -> None:
        self.say("phase", sentence)

    def next(self, idle: Callable[[], None] = lambda: None) -> Line:
        """Return the next question; call ``idle`` once, should none come for a while."""
        try:
            return self._questions.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            idle()
            return self._questions.get()

    def find_alike(self, content_key: str) -> SensitivityResult | None:
        self.say("find", content_key)
        found = self.next().body
        return None if found is None else decode(found, SensitivityResult)

    def stream(self, found: Iterable[LayerMeasurement]) -> None:
        """Say each finding, with no more than a few on the way."""
        for item in found:
            self._room.acquire()
            self.say("found", encode(item))
        self.say("end")

    def emit(self, record: logging.LogRecord) -> None:
        self.say("log", [record.name, record.levelno, self.format(record)])

    def _listen(self, requests: BinaryIO) -> None:
        while (line := read_line(requests)) is not None:
            if line.kind == "taken":
                self._room.release()
            else:
                self._questions.put(line)
        os._exit(_ORPHANED)  # the app is gone, or wants no more


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer the app until it leaves; what goes wrong is told to it."""
    talk = _Conversation(requests, answers)
    logging.getLogger("senseapp").addHandler(talk)
    logging.getLogger("senseapp").setLevel(logging.INFO)
    while True:
        request = talk.next(idle=LEFTOVERS.clear)
        LEFTOVERS.keep()
        try:
            _ANSWERS[request.kind](talk, request.body)
        except SenseError as error:
            talk.say("refused", [type(error).__name__, str(error)])
        except BaseException:  # an exit of some library too: it is the app that ends this process
            talk.say("crashed", traceback.format_exc())


def _warm(talk: _Conversation, request: None) -> None:
    load_engine()
    talk.say("warm")


def _carry_out(talk: _Conversation, request: dict[str, Any]) -> None:
    folder = RunFolder(Path(request["folder"]))
    spec = folder.spec()
    with _within(request["job_mb"], spec.sensitivity.device if spec else "auto"):
        decode_task(request["task"]).carry_out(folder, progress=talk.phase, data_roots=_paths(request["data_roots"]))
    talk.say("done")


def _run(talk: _Conversation, request: dict[str, Any]) -> None:
    spec = decode(request["spec"], RunSpec)
    device, address = spec.sensitivity.device, request["address"]
    with _executor(talk, address, device) as executor, nullcontext() if address else _within(request["job_mb"], device):
        session = _opened(talk, spec, request, executor)
        talk.say(
            "opened",
            {
                "head": encode(session.result(())),
                "targets": session.targets,
                "predicted_seconds": session.predicted_seconds(),
                "reusable": [encode(item) for item in session.reusable()],
            },
        )
        while (question := talk.next()).kind != "leave":
            _answer(talk, session, question)


def _opened(talk: _Conversation, spec: RunSpec, request: dict[str, Any], executor: Executor | None) -> Session:
    load_engine()
    from senseapp.sensitivity import Session, arithmetic_of

    earlier = None if request["earlier"] is None else decode(request["earlier"], SensitivityResult)
    layout, span_images = (None, None) if earlier is None else arithmetic_of(earlier)
    return Session.open(
        spec if earlier is None else earlier.spec,
        data_roots=_paths(request["data_roots"]),
        progress=talk.phase,
        layout=layout,
        span_images=span_images,
        executor=executor,
        find_alike=talk.find_alike,
    )


def _answer(talk: _Conversation, session: Session, question: Line) -> None:
    if question.kind == "estimates":
        talk.stream(session.estimates())
    elif question.kind == "measure":
        talk.stream(session.measure([decode(item, LayerMeasurement) for item in question.body]))
    else:
        measurements, estimates = ([decode(item, LayerMeasurement) for item in part] for part in question.body[:2])
        talk.say("result", encode(session.result(measurements, estimates, seconds=question.body[2])))


@contextmanager
def _executor(talk: _Conversation, address: str, device: str) -> Iterator[Executor | None]:
    """Make passes on the cluster at ``address`` inside the block; an empty one is this process itself."""
    if not address:
        yield None
        return
    from senseapp.distributed.cluster import connected

    with connected(address, device=device) as cluster:
        from senseapp.distributed.executor import RayExecutor  # a cluster that does not answer needs no torch

        yield RayExecutor(cluster, talk.phase)


def _within(job_mb: int, device: str) -> AbstractContextManager[None]:
    return MemoryGuard(job_mb).job(limited=runs_on_processor(device))


def _paths(texts: Iterable[str]) -> tuple[Path, ...]:
    return tuple(map(Path, texts))


_ANSWERS: dict[str, Callable[[_Conversation, Any], None]] = {"warm": _warm, "open": _run, "task": _carry_out}


def main() -> None:
    """Serve the app at the other end of standard input and output; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
