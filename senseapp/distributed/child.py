"""The process that talks to the cluster: ``python -m senseapp.distributed.child``, started by the app.

Ray ends the process that asks when the head of its cluster is gone. So it is not the app that asks: this process
opens the session, and the app gets what it finds line by line. It ends when the app does.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from senseapp.distributed.cluster import connected
from senseapp.distributed.messages import Line, read_line, write_line
from senseapp.errors import SenseError
from senseapp.results import LayerMeasurement, SensitivityResult
from senseapp.spec import RunSpec
from senseapp.spec.codec import decode, encode

if TYPE_CHECKING:
    from senseapp.sensitivity import Session

__all__ = ["main", "serve"]

_ORPHANED = 3


class _Conversation:
    """Answers the app's questions, in the order in which they come."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._answers = answers
        self._questions: queue.Queue[Line] = queue.Queue()
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()

    def say(self, kind: str, body: object = None) -> None:
        write_line(self._answers, kind, body)

    def next(self) -> Line:
        return self._questions.get()

    def find_alike(self, content_key: str) -> SensitivityResult | None:
        self.say("find", content_key)
        found = self.next().body
        return None if found is None else decode(found, SensitivityResult)

    def _listen(self, requests: BinaryIO) -> None:
        while (line := read_line(requests)) is not None:
            self._questions.put(line)
        os._exit(_ORPHANED)  # the app is gone, or wants no more; Ray ends what this process has asked for


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer one app until it leaves; what goes wrong is told to it."""
    talk = _Conversation(requests, answers)
    try:
        _serve(talk)
    except SenseError as error:
        talk.say("refused", [type(error).__name__, str(error)])
    except Exception:
        talk.say("crashed", traceback.format_exc())


def _serve(talk: _Conversation) -> None:
    request = talk.next().body
    spec = decode(request["spec"], RunSpec)
    earlier = None if request["earlier"] is None else decode(request["earlier"], SensitivityResult)
    with connected(request["address"], device=spec.sensitivity.device) as cluster:
        from senseapp.distributed.executor import RayExecutor  # a cluster that does not answer needs no torch
        from senseapp.sensitivity import Session, arithmetic_of

        layout, span_images = (None, None) if earlier is None else arithmetic_of(earlier)
        session = Session.open(
            spec,
            data_roots=tuple(Path(root) for root in request["data_roots"]),
            progress=lambda sentence: talk.say("phase", sentence),
            layout=layout,
            span_images=span_images,
            executor=RayExecutor(cluster, lambda sentence: talk.say("phase", sentence)),
            find_alike=talk.find_alike,
        )
        talk.say(
            "opened",
            {
                "head": encode(session.result(())),
                "targets": session.targets,
                "predicted_seconds": session.predicted_seconds(),
                "reusable": [encode(item) for item in session.reusable()],
            },
        )
        while True:
            _answer(talk, session, talk.next())


def _answer(talk: _Conversation, session: Session, question: Line) -> None:
    if question.kind == "estimates":
        _stream(talk, session.estimates())
    elif question.kind == "measure":
        _stream(talk, session.measure([decode(item, LayerMeasurement) for item in question.body]))
    else:
        measurements, estimates = ([decode(item, LayerMeasurement) for item in part] for part in question.body[:2])
        talk.say("result", encode(session.result(measurements, estimates, seconds=question.body[2])))


def _stream(talk: _Conversation, found: Iterable[LayerMeasurement]) -> None:
    for item in found:
        talk.say("found", encode(item))
    talk.say("end")


def main() -> None:
    """Serve the app at the other end of standard input and output; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
