"""A limit on open connections of pages, in all and from one address, and an end of those that say nothing.

Each page that is open takes four descriptors of the process, and a process has a limited number of them.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from senseapp.compat.streamlit_internals import is_session
from senseapp.core.errors import InvalidSpec

SILENT_SECONDS = 10.0
"""For which a connection may be open before its first message; pages send one at once."""

_TRY_AGAIN = 1013
_POLICY_VIOLATION = 1008
_DESCRIPTORS_OF_A_PAGE = 4
_OTHER_DESCRIPTORS = 256
_FALLBACK_LIMIT = 1024  # where the system knows none


class Connections:
    """Counts the connections of pages, and hands one on once its first message has come.

    Where there are as many as may be, the one that has been silent longest gives way to a new one; without any, the new
    one is refused. A page that comes back to its session after a pause has nothing to say, and is handed on at once.

    Args:
        app: what takes the connections.
        in_all: connections that may be open; 0 takes what the number of descriptors allows.
        per_address: of those, from one address.
        silent_seconds: until the first message.
    """

    def __init__(
        self, app: ASGIApp, *, in_all: int = 0, per_address: int = 100, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self._app = app
        self._in_all = min(in_all or most_pages(), most_pages())
        self._per_address = per_address
        self._seconds = silent_seconds
        self._open: Counter[str] = Counter()
        self._silent: dict[asyncio.Event, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        address = (scope.get("client") or ("",))[0]
        if not self._has_room(address):
            await receive()
            await send({"type": "websocket.close", "code": _TRY_AGAIN})  # answers with 403
            return
        self._open[address] += 1
        try:
            await self._hand_on(scope, receive, send, address)
        finally:
            self._open[address] -= 1
            self._open += Counter()  # forgets addresses without connections

    def _has_room(self, address: str) -> bool:
        """Tell whether one more may come, once a silent one has been told to go if that is needed."""
        if self._open[address] >= self._per_address:
            gives_way = next((each for each, whose in self._silent.items() if whose == address), None)
        elif self._open.total() >= self._in_all:
            gives_way = next(iter(self._silent), None)
        else:
            return True
        if gives_way is not None:
            del self._silent[gives_way]
            gives_way.set()
        return gives_way is not None

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send, address: str) -> None:
        offered = [each.strip() for each in Headers(scope=scope).get("sec-websocket-protocol", "").split(",")]
        if len(offered) > 2 and is_session(offered[2]):
            await self._app(scope, receive, send)
            return
        held = [await receive()]
        await send({"type": "websocket.accept", "subprotocol": offered[0] or None})
        first = await self._first_message(receive, address)
        if first is None or first["type"] == "websocket.disconnect":
            if first is None:
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        held.append(first)

        async def receive_held() -> Message:
            return held.pop(0) if held else await receive()

        async def send_rest(message: Message) -> None:
            if message["type"] != "websocket.accept":
                await send(message)

        await self._app(scope, receive_held, send_rest)

    async def _first_message(self, receive: Receive, address: str) -> Message | None:
        """Return the first message; None if none comes in time, or the connection has to give way to another."""
        gives_way = asyncio.Event()
        self._silent[gives_way] = address
        message, waiting = asyncio.ensure_future(receive()), asyncio.ensure_future(gives_way.wait())
        try:
            await asyncio.wait({message, waiting}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else None
        finally:
            self._silent.pop(gives_way, None)
            message.cancel()
            waiting.cancel()


def most_pages() -> int:
    """Return how many pages may be open, by the number of descriptors that this process may have."""
    return max(16, (descriptors() - _OTHER_DESCRIPTORS) // _DESCRIPTORS_OF_A_PAGE)


def descriptors() -> int:
    """Return how many descriptors this process may have now."""
    try:
        import resource  # not on every platform
    except ImportError:
        return _FALLBACK_LIMIT
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


_WANTED_DESCRIPTORS = 65_536


def raise_descriptors() -> None:
    """Let this process have as many descriptors as the system lets it, up to 65,536."""
    try:
        import resource  # not on every platform
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def configured_limits() -> dict[str, int]:
    """Return ``SENSEAPP_PAGES_IN_ALL`` and ``SENSEAPP_PAGES_PER_ADDRESS`` as arguments of :class:`Connections`.

    Raises:
        InvalidSpec: one of them is no number, or negative.
    """
    return {
        "in_all": _number("SENSEAPP_PAGES_IN_ALL", "0"),
        "per_address": _number("SENSEAPP_PAGES_PER_ADDRESS", "100"),
    }


def _number(name: str, usual: str) -> int:
    given = os.environ.get(name, "").strip() or usual
    if not given.isdecimal():
        raise InvalidSpec(f"{name} is a number of pages that may be open at once; got {given!r}.")
    return int(given)
