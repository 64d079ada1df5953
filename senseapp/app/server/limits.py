"""Limits on what a page sends (its address, texts, lists, edits of tables), and on open connections of pages.

Messages are checked here, before anything reads them, and so in every field of every page. Pages cannot exceed the
limits: their fields take no more (:mod:`senseapp.app.common.texts`). The connection of whoever does is closed, as is
that of whoever sends a message of more than two megabytes.

Connections are limited in all and from one address, and those that say nothing are ended. Each page that is open takes
four descriptors of the process, and a process has a limited number of them.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import Message as Record
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from senseapp.app.common.texts import LONGEST_TEXT
from senseapp.app.server.guards import POLICY_VIOLATION, Around
from senseapp.compat.streamlit_internals import is_session, page_message
from senseapp.server.settings import whole_number

LONGEST_ADDRESS = 200_000
"""Characters of the query of an address. A list of layers may be in it, of which a letter takes up to three."""
LONGEST_TABLE = 500_000
"""Characters of the edits of a table, or of what is picked in a chart, as JSON."""
MOST_PARTS = 100_000
"""Fields, entries of lists and values in JSON of one message."""

_TOO_BIG = 1009  # close code of RFC 6455, 7.4.1
_log = logging.getLogger(__name__)


class _Excess(Exception):
    """A message exceeds a limit; says which."""


class BoundedMessages(Around):
    """Closes a connection on which a message exceeds the limits, and hands on all others."""

    kinds = frozenset({"websocket"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
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
    try:
        for number, (most, text) in enumerate(_parts("", page_message(content)), start=1):
            if number > MOST_PARTS:
                return f"more than {MOST_PARTS:,} parts"
            if len(text) > most:
                return f"a text of {len(text):,} characters, where {most:,} are taken"
    except _Excess as excess:
        return str(excess)
    return ""


def _parts(name: str, value: Any) -> Iterator[tuple[int, str | bytes]]:
    """Yield each part of a message: a text with its greatest length; for others, an empty text."""
    if isinstance(value, str | bytes):
        is_address = name in ("query_string", "url")
        is_table = isinstance(value, str) and not is_address and value.lstrip()[:1] in ("{", "[")
        yield LONGEST_ADDRESS if is_address else LONGEST_TABLE if is_table else LONGEST_TEXT, value
        if is_table:  # and no longer than a table may be, as this goes on only then
            yield from _table_parts(str(value))
    elif isinstance(value, Record):
        yield 0, ""
        for field, inner in value.ListFields():
            yield from _parts(field.name, inner)
    elif isinstance(value, Iterable):  # a repeated field
        for each in value:
            yield from _parts(name, each)
    else:
        yield 0, ""


def _table_parts(text: str) -> Iterator[tuple[int, str]]:
    """Yield the parts of edits of a table, or of what is picked in a chart; another text that begins so is one part."""
    try:
        waiting = [json.loads(text)]
    except RecursionError as error:
        raise _Excess("lists in lists without end") from error
    except ValueError:
        yield LONGEST_TEXT, text
        return
    while waiting:
        value = waiting.pop()
        yield LONGEST_TEXT, value if isinstance(value, str) else ""
        if isinstance(value, dict):
            if value.get("added_rows") or value.get("deleted_rows"):  # Streamlit would add them to fixed tables too
                raise _Excess("rows for a table whose rows are fixed")
            waiting += (*value, *value.values())
        elif isinstance(value, list):
            waiting += value


SILENT_SECONDS = 10.0
"""For which a connection may be open before its first message; pages send one at once."""


class Connections(Around):
    """Counts the connections of pages, and hands one on once its first message has come.

    Where there are as many as may be, a new one is refused. A page that comes back after a pause has nothing to say
    until somebody acts on it: it is handed on at once to its session, and stays connected without a limit where that
    has ended. (Closed, it would come back again and again, and an action in between would be lost.)

    Args:
        app: what takes the connections.
        in_all: connections that may be open; 0 takes what the number of descriptors allows.
        per_address: of those, from one address.
        silent_seconds: until the first message.
    """

    kinds = frozenset({"websocket"})

    def __init__(
        self, app: ASGIApp, *, in_all: int = 0, per_address: int = 100, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        super().__init__(app)
        self._in_all = min(in_all or most_pages(), most_pages())
        self._per_address = per_address
        self._seconds = silent_seconds
        self._open: Counter[str] = Counter()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = (scope.get("client") or ("",))[0]
        if self._open[address] >= self._per_address or self._open.total() >= self._in_all:
            await receive()
            await send({"type": "websocket.close", "code": 1013})  # IANA: try again later; answers with 403
            return
        self._open[address] += 1
        try:
            await self._hand_on(scope, receive, send)
        finally:
            self._open[address] -= 1
            self._open += Counter()  # forgets addresses without connections

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        offered = [each.strip() for each in Headers(scope=scope).get("sec-websocket-protocol", "").split(",")]
        if len(offered) > 2 and is_session(offered[2]):
            await self._app(scope, receive, send)
            return
        held = [await receive()]
        await send({"type": "websocket.accept", "subprotocol": offered[0] or None})
        try:
            first = await asyncio.wait_for(receive(), self._seconds if len(offered) < 3 else None)
        except TimeoutError:
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        if first["type"] == "websocket.disconnect":
            return
        held.append(first)

        async def receive_held() -> Message:
            return held.pop(0) if held else await receive()

        async def send_rest(message: Message) -> None:
            if message["type"] != "websocket.accept":
                await send(message)

        await self._app(scope, receive_held, send_rest)


def most_pages() -> int:
    """Return how many pages may be open, by the number of descriptors that this process may have.

    Each takes four, for its connection and for files; the database, logs, libraries and worker processes take 256.
    """
    return max(16, (descriptors() - 256) // 4)


_WANTED_DESCRIPTORS = 65_536  # enough for 16,000 pages; the usual soft limit, 1,024, allows 192


def descriptors() -> int:
    """Return how many descriptors this process may have, once their limit is raised as far as the system permits."""
    try:
        import resource  # not on every platform
    except ImportError:
        return 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def configured_limits() -> dict[str, int]:
    """Return ``SENSEAPP_PAGES_IN_ALL`` and ``SENSEAPP_PAGES_PER_ADDRESS`` as arguments of :class:`Connections`.

    Raises InvalidSpec if one of them is no number, or negative.
    """
    return {
        "in_all": whole_number("SENSEAPP_PAGES_IN_ALL", 0, unit="pages", least=0),
        "per_address": whole_number("SENSEAPP_PAGES_PER_ADDRESS", 100, unit="pages", least=0),
    }
