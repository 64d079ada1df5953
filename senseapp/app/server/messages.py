"""Limits on everything that a page sends: the address, texts and lists of its fields, edits of its tables.

They are checked here, before anything reads a message, and so hold for every field of every page. Pages cannot exceed
them: their fields take no more (:mod:`senseapp.app.common.texts`). The connection of whoever does is closed, as that of
whoever sends a message of more than two megabytes is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sized
from typing import Any

from google.protobuf.message import Message as Record
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from senseapp.app.common.texts import LONGEST_TEXT
from senseapp.compat.streamlit_internals import page_message

LONGEST_ADDRESS = 200_000
"""Characters of the query of an address. A list of layers may be in it, of which a letter takes up to three."""
LONGEST_TABLE = 500_000
"""Characters of the edits of a table, or of what is picked in a chart, as JSON."""
MOST_PARTS = 100_000
"""Fields, entries of lists and values in JSON of one message."""

_ADDRESS = ("query_string", "url")
_NEW_ROWS = ("added_rows", "deleted_rows")
_TOO_BIG = 1009
_log = logging.getLogger(__name__)


class _Excess(Exception):
    """A message exceeds a limit; says which."""


class BoundedMessages:
    """Closes a connection on which a message exceeds the limits, and hands on all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        is_closed = False

        async def receive_bounded() -> Message:
            nonlocal is_closed
            message = await receive()
            excess = excess_of(message.get("bytes") or b"") if message["type"] == "websocket.receive" else ""
            if not excess:
                return message
            _log.info("closed the connection of a page that sent %s", excess)
            is_closed = True
            await send({"type": "websocket.close", "code": _TOO_BIG})
            return {"type": "websocket.disconnect", "code": _TOO_BIG}

        async def send_if_open(message: Message) -> None:
            if not is_closed:
                await send(message)

        await self._app(scope, receive_bounded, send_if_open)


def excess_of(content: bytes) -> str:
    """Return which limit a message of a page exceeds, in words; nothing where it exceeds none."""
    message = page_message(content)
    try:
        if message is not None:
            _MessageWalk().check(message)
    except _Excess as excess:
        return str(excess)
    return ""


class _MessageWalk:
    """One walk through a message, which counts its parts."""

    def __init__(self) -> None:
        self._left = MOST_PARTS

    def check(self, record: Record) -> None:
        """Check the fields of ``record`` that are set; raises _Excess."""
        for field, value in record.ListFields():
            self._check_value(field.name, value)

    def _check_value(self, name: str, value: Any) -> None:
        if isinstance(value, str | bytes):
            self._count(1)
            self._check_text(name, value)
        elif isinstance(value, Record):
            self._count(1)
            self.check(value)
        elif isinstance(value, Sized):  # a repeated field
            self._count(len(value))
            for each in value:  # type: ignore[attr-defined]
                self._check_value(name, each)

    def _check_text(self, name: str, text: str | bytes) -> None:
        is_table = isinstance(text, str) and name not in _ADDRESS and text.lstrip()[:1] in ("{", "[")
        most = LONGEST_ADDRESS if name in _ADDRESS else LONGEST_TABLE if is_table else LONGEST_TEXT
        _check_length(text, most)
        if is_table:
            self._check_table(text)

    def _check_table(self, text: str | bytes) -> None:
        """Check edits of a table, or what is picked in a chart; a text that only begins as they do is a text."""
        try:
            waiting = [json.loads(text)]
        except RecursionError as error:
            raise _Excess("lists in lists without end") from error
        except ValueError:
            _check_length(text, LONGEST_TEXT)
            return
        while waiting:
            value = waiting.pop()
            self._count(1)
            if isinstance(value, str):
                _check_length(value, LONGEST_TEXT)
            elif isinstance(value, dict):
                if any(value.get(name) for name in _NEW_ROWS):  # Streamlit would add them to tables of fixed rows too
                    raise _Excess("rows for a table whose rows are fixed")
                waiting += (*value, *value.values())
            elif isinstance(value, list):
                waiting += value

    def _count(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise _Excess(f"more than {MOST_PARTS:,} parts")


def _check_length(text: str | bytes, most: int) -> None:
    if len(text) > most:
        raise _Excess(f"a text of {len(text):,} characters, where {most:,} are taken")
