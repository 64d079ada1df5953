"""Lines between the app and a process that works for it: strict JSON, one message each, never pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One message.

    Attributes:
        kind: what it is.
        body: its content, of JSON's types; records as :func:`senseapp.spec.codec.encode` gives them.
    """

    kind: str
    body: Any = None


def write_line(stream: IO[bytes], kind: str, body: Any = None) -> None:
    """Send a message.

    Raises:
        BrokenPipeError: the other side is gone.
    """
    stream.write(json.dumps([kind, body], allow_nan=False, separators=(",", ":")).encode() + b"\n")
    stream.flush()


def read_line(stream: IO[bytes]) -> Line | None:
    """Return the next message, or None once the other side is gone."""
    text = stream.readline()
    if not text.endswith(b"\n"):
        return None
    kind, body = json.loads(text)
    return Line(kind=kind, body=body)
