"""Worker process of the app: ``python -m senseapp.server.process.child``, started by the app.

Measurements do not share an interpreter with the pages, and a job that exhausts memory, or crashes in a library, ends
only this process. So does Ray, which ends the process connected to it when the head of its cluster is lost. The process
ends with the app.
"""

import logging
import math
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from senseapp.core.codec import encode, from_plain
from senseapp.core.errors import SenseError
from senseapp.core.files import PRIVATE
from senseapp.core.process import PROCESS_CACHE, at_work, give_back_freed_memory, pause, read_line, write_line
from senseapp.descriptions.runtimes import RUNTIMES, usual_runtime
from senseapp.measure.cluster.cluster import connected
from senseapp.records.measurement import LayerMeasurement, RunResult
from senseapp.server.machine import load_engine, memory_limit, runs_on_processor
from senseapp.server.process.requester import Line, answer_here, decode_task
from senseapp.server.tasks import EarlierRun, RunObserver, TaskContext, open_local_session
from senseapp.store.run_folder import RunFolder

_GRACE_SECONDS = 5  # after which a question that takes too long ends the process, should the app not have done so
_AHEAD_SECONDS = 2.0  # after which a process that has nothing to do loads more
_IDLE_SECONDS = 60.0  # for which memory is kept: to fault it in anew takes a histogram .3 to 2.4 s


class _Conversation(logging.Handler):
    """Receives the app's requests in order, and forwards log records meanwhile."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        super().__init__(logging.INFO)
        self._answers = answers
        self._saying = threading.Lock()
        self._requests: queue.Queue[Line] = queue.Queue()
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()

    def say(self, kind: str, body: object = None) -> None:
        with self._saying:
            write_line(self._answers, [kind, body])
            self._answers.flush()

    def next(self, *idle: tuple[float, Callable[[], None]]) -> Line:
        """Return the next request; after the idle seconds of each pair, call its function, one by one."""
        for seconds, act in idle:
            with suppress(queue.Empty):
                return self._requests.get(timeout=seconds)
            act()
        return self._requests.get()

    def emit(self, record: logging.LogRecord) -> None:
        self.say("log", [record.name, record.levelno, self.format(record)])

    def _listen(self, requests: BinaryIO) -> None:
        with suppress(EOFError):
            while True:
                self._requests.put(Line(*read_line(requests)))
        os._exit(3)  # the app has ended or closed the stream


class AppObserver(RunObserver):
    """Sends what it observes to the app.

    Each report is also a point at which another process of the server may time something first.
    """

    def __init__(self, say: Callable[[str, Any], None]) -> None:
        self._say = say

    def phase(self, sentence: str) -> None:
        """Send the step that begins."""
        if sentence:
            self._say("phase", sentence)
        pause()

    def opened(self, head: RunResult, **figures: Any) -> None:
        """Send the facts known before the first measurement."""
        self._say("opened", [encode(head), figures])

    def measured(self, measurement: LayerMeasurement) -> None:
        """Send one measurement, or one estimate."""
        self._say("measured", encode(measurement))
        pause()


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Serve requests of the app until it closes the stream; errors are reported to it."""
    talk = _Conversation(requests, answers)
    logging.getLogger("senseapp").addHandler(talk)
    logging.getLogger("senseapp").setLevel(logging.INFO)
    while True:
        request = talk.next((_AHEAD_SECONDS, _load_ahead), (_IDLE_SECONDS, PROCESS_CACHE.clear))
        PROCESS_CACHE.keep()
        try:
            _ANSWERS[request.kind](talk, request.body)
        except SenseError as error:
            talk.say("refused", [type(error).__name__, str(error)])
        except BaseException:  # includes SystemExit of a library: only the app ends this process
            talk.say("crashed", traceback.format_exc())


def _load_ahead() -> None:
    """Import the modules for files of runtimes, once the engine is loaded and the process is idle."""
    if "torch" in sys.modules:
        with suppress(ImportError, SenseError):  # whoever wants a file is told
            for module in ("senseapp.prove.deliver", *(name for each in RUNTIMES.values() for name in each.warm_up)):
                import_module(module)
            _write_first_file()


@cache
def _write_first_file() -> None:
    """Write a file of one layer: torch lists its operators for the first one, which takes a second or two."""
    import torch

    from senseapp.runtimes.base import runtime_for

    layer = torch.nn.Conv2d(1, 1, 1).eval()
    runtime_for(usual_runtime(), None).exporter(layer, torch.zeros(1, 1, 4, 4))(layer)


def _warm(talk: _Conversation, request: None) -> None:
    load_engine()
    talk.say("warm")


def _carry_out(talk: _Conversation, body: dict[str, Any]) -> None:
    task, app, device = decode_task(body["task"]), AppObserver(talk.say), body["device"]
    context = TaskContext(
        folder=RunFolder(Path(body["folder"])),
        observer=app,
        data_roots=from_plain(body["data_roots"], tuple[Path, ...]),
        earlier=from_plain(body["earlier"], tuple[EarlierRun, ...]),
    )
    if body["address"]:
        with connected(body["address"], device=device) as cluster:
            from senseapp.measure.cluster.executor import RayExecutor  # an unreachable cluster needs no torch

            session = partial(open_local_session, executor=RayExecutor(cluster, app.phase))
            with at_work():
                task.carry_out(replace(context, open_session=session))
    else:
        with memory_limit(most_bytes=task.most_bytes, limited=runs_on_processor(device)), at_work():
            task.carry_out(context)
    talk.say("done")


def _answer(talk: _Conversation, request: dict[str, Any]) -> None:
    signal.alarm(math.ceil(request["seconds"]) + _GRACE_SECONDS)  # ends it even in C code that holds the GIL
    try:
        with memory_limit(most_bytes=request["most_bytes"]):
            talk.say("answer", answer_here(request["question"]))
    finally:
        signal.alarm(0)
        give_back_freed_memory()  # the next request is about another file


_ANSWERS: dict[str, Callable[[_Conversation, Any], None]] = {"warm": _warm, "task": _carry_out, "question": _answer}


def main() -> None:
    """Serve the app over standard input and output; prints of libraries go to standard error."""
    os.umask(PRIVATE)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
