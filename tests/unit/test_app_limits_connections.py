"""Connections of pages: how many may be open, and for how long they may be silent."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from senseapp.app.server import limits
from senseapp.app.server.limits import Connections, configured_limits, raise_descriptors
from senseapp.core.errors import InvalidSpec
from tests.asynchronous import run_async


class Page:
    """One connection: what it sends is put into ``says``, what it hears comes into ``heard``."""

    def __init__(self, app: Connections, address: str, protocols: str = "streamlit, token") -> None:
        self.says: asyncio.Queue[Message] = asyncio.Queue()
        self.says.put_nowait({"type": "websocket.connect"})
        self.heard: list[str] = []
        headers = [(b"sec-websocket-protocol", protocols.encode())]
        scope = {"type": "websocket", "client": (address, 1), "headers": headers}
        self.done = asyncio.ensure_future(app(scope, self.says.get, self._hear))

    async def _hear(self, message: Message) -> None:
        self.heard.append(message["type"])

    def speak(self) -> None:
        self.says.put_nowait({"type": "websocket.receive", "bytes": b"rerun"})

    def leave(self) -> None:
        self.says.put_nowait({"type": "websocket.disconnect"})


class Sessions:
    """What is behind: takes each connection, and counts those that it has and the messages that came."""

    def __init__(self) -> None:
        self.open = self.messages = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        self.open += 1
        while (await receive())["type"] == "websocket.receive":
            self.messages += 1
        self.open -= 1


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_page_that_speaks_is_handed_on_with_its_first_message() -> None:
    async def check() -> None:
        sessions = Sessions()
        page = Page(Connections(sessions, silent_seconds=30), "ann")
        await settle()
        assert (page.heard, sessions.open) == (["websocket.accept"], 0)
        page.speak()
        page.speak()
        await settle()
        assert (page.heard, sessions.open, sessions.messages) == (["websocket.accept"], 1, 2)
        page.leave()
        await page.done
        assert sessions.open == 0

    run_async(check())


def test_a_silent_connection_is_closed_and_leaves_nothing() -> None:
    async def check() -> None:
        sessions = Sessions()
        app = Connections(sessions, silent_seconds=0.01)
        pages = [Page(app, "bob") for _ in range(50)]
        await asyncio.gather(*(page.done for page in pages))
        assert {tuple(page.heard) for page in pages} == {("websocket.accept", "websocket.close")}
        assert (sessions.open, app._open, app._silent) == (0, {}, {})

    run_async(check())


def test_the_longest_silent_one_gives_way_and_speaking_ones_stay() -> None:
    async def check() -> None:
        sessions = Sessions()
        app = Connections(sessions, in_all=4, per_address=3, silent_seconds=30)
        speaking = [Page(app, "ann") for _ in range(2)]
        for page in speaking:
            page.speak()
        silent = [Page(app, "bob") for _ in range(2)]
        await settle()
        new = Page(app, "cyd")  # four are open: the first silent one goes
        new.speak()
        await settle()
        assert [page.heard[-1] for page in silent] == ["websocket.close", "websocket.accept"]
        assert sessions.open == 3
        again = Page(app, "ann")
        await settle()
        assert silent[1].heard[-1] == "websocket.close"
        again.speak()
        await settle()
        refused = Page(app, "dan")
        await refused.done
        assert refused.heard == ["websocket.close"]
        assert sessions.open == 4
        for page in (*speaking, again, new):
            page.leave()

    run_async(check())


def test_a_page_that_comes_back_to_its_session_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "is_session", lambda session: session == "known")

    async def check() -> None:
        sessions = Sessions()
        app = Connections(sessions, silent_seconds=0.01)
        back, forged = (Page(app, "ann", f"streamlit, token, {name}") for name in ("known", "unknown"))
        await forged.done
        assert (back.heard, forged.heard[-1], sessions.open) == (["websocket.accept"], "websocket.close", 1)
        back.leave()
        await back.done

    run_async(check())


def test_limits_are_numbers_and_within_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "descriptors", lambda: 1024)
    assert Connections(Sessions(), in_all=5000)._in_all == 192
    monkeypatch.setenv("SENSEAPP_PAGES_PER_ADDRESS", "7")
    assert configured_limits() == {"in_all": 0, "per_address": 7}
    monkeypatch.setenv("SENSEAPP_PAGES_IN_ALL", "many")
    with pytest.raises(InvalidSpec, match="SENSEAPP_PAGES_IN_ALL is a number of pages"):
        configured_limits()


def test_descriptors_are_raised_to_what_the_system_lets_us_have() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        raise_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard if hard > 0 else 65_536, 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
