"""Limits of the web server: connections of pages, and texts, lists and tables of a message."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import streamlit as st
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from starlette.types import Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.testing.v1 import AppTest

from senseapp.app.common.texts import LONGEST_TEXT, TYPED
from senseapp.app.server import limits
from senseapp.app.server.limits import (
    LONGEST_ADDRESS,
    MOST_PARTS,
    BoundedMessages,
    Connections,
    configured_limits,
    descriptors,
    excess_of,
)
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
        assert (sessions.open, app._open) == (0, {})

    run_async(check())


def test_no_more_pages_are_connected_than_may_be() -> None:
    async def check() -> None:
        sessions = Sessions()
        app = Connections(sessions, in_all=4, per_address=3)
        pages = [Page(app, name) for name in ("ann", "ann", "ann", "bob")]
        for page in pages:
            page.speak()
        await settle()
        assert sessions.open == 4
        refused = [Page(app, "cyd")]  # as many as in all
        pages[3].leave()
        await settle()
        refused.append(Page(app, "ann"))  # as many as from one address
        await asyncio.gather(*(page.done for page in refused))
        assert [page.heard for page in refused] == [["websocket.close"]] * 2
        for page in pages[:3]:
            page.leave()

    run_async(check())


def test_a_page_that_comes_back_may_be_silent_also_where_its_session_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "is_session", lambda session: session == "known")

    async def check() -> None:
        sessions = Sessions()
        app = Connections(sessions, silent_seconds=0.01)
        back, ended = (Page(app, "ann", f"streamlit, token, {name}") for name in ("known", "ended"))
        await asyncio.sleep(0.05)
        assert [page.heard for page in (back, ended)] == [["websocket.accept"]] * 2
        assert sessions.open == 1  # no session is made for one that says nothing
        ended.speak()
        await settle()
        assert (sessions.open, sessions.messages) == (2, 1)
        for page in (back, ended):
            page.leave()

    run_async(check())


def test_limits_are_numbers_and_within_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "descriptors", lambda: 1024)
    assert Connections(Sessions(), in_all=5000)._in_all == 192
    monkeypatch.setenv("SENSEAPP_PAGES_PER_ADDRESS", "7")
    assert configured_limits() == {"in_all": 0, "per_address": 7}
    monkeypatch.setenv("SENSEAPP_PAGES_IN_ALL", "many")
    with pytest.raises(InvalidSpec, match="SENSEAPP_PAGES_IN_ALL must be a whole number of pages"):
        configured_limits()


def test_descriptors_are_raised_to_what_the_system_lets_us_have() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard if hard > 0 else 65_536, 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


Path = tuple[FieldDescriptor, ...]


def paths(of: Descriptor, before: Path = ()) -> Iterator[Path]:
    """Yield the way to each field of a message and of the messages in it."""
    for field in of.fields:
        yield (*before, field)
        if field.message_type is not None:
            yield from paths(field.message_type, (*before, field))


PATHS = list(paths(BackMsg.DESCRIPTOR))
TEXTS = [path for path in PATHS if path[-1].type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)]
LISTS = [path for path in PATHS if path[-1].is_repeated]


def said(path: Path, value: Any, times: int = 1) -> bytes:
    """Return a message in which the field at ``path`` is ``value``, or so many times that where it is a list."""
    message = BackMsg()
    place: Any = message
    for field in path[:-1]:
        inner = getattr(place, field.name)
        place = inner.add() if field.is_repeated else inner
    last = path[-1]
    if not last.is_repeated:
        setattr(place, last.name, value.encode() if last.type == FieldDescriptor.TYPE_BYTES else value)
    elif last.message_type is not None:
        for _ in range(times):
            getattr(place, last.name).add()
    else:
        getattr(place, last.name).extend([value] * times)
    return message.SerializeToString()


def longest(path: Path) -> int:
    return LONGEST_ADDRESS if path[-1].name in ("query_string", "url") else LONGEST_TEXT


def name_of(path: Path) -> str:
    return ".".join(field.name for field in path)


def test_every_text_of_a_message_has_a_limit() -> None:
    assert {"query_string", "string_value", "json_value", "page_name", "fragment_id"} <= {p[-1].name for p in TEXTS}
    for path in TEXTS:
        for letter in "x{":
            assert excess_of(said(path, letter * longest(path))) == "", name_of(path)
            assert "where" in excess_of(said(path, letter * (longest(path) + 1))), name_of(path)


def test_every_list_of_a_message_has_a_limit() -> None:
    for path in LISTS:
        value = "x" if path[-1].type == FieldDescriptor.TYPE_STRING else 1
        assert excess_of(said(path, value, 5000)) == "", name_of(path)
        assert excess_of(said(path, value, MOST_PARTS + 1)) == f"more than {MOST_PARTS:,} parts", name_of(path)


TABLE = next(path for path in TEXTS if path[-1].name == "string_value")


@pytest.mark.parametrize(
    ("table", "excess"),
    [
        ('{"edited_rows": {"3": {"amount": 50.0, "locked": true}}, "added_rows": [], "deleted_rows": []}', ""),
        ('{"selection": {"rows": [0, 1, 2], "columns": [], "cells": []}}', ""),
        ('{"edited_rows": {}, "added_rows": [{}], "deleted_rows": []}', "rows for a table whose rows are fixed"),
        ('{"a": [{"deleted_rows": [0]}]}', "rows for a table whose rows are fixed"),
        (json.dumps({"edited_rows": {"0": {"a": "x" * (LONGEST_TEXT + 1)}}}), "a text of 50,001 characters, where"),
        (json.dumps({str(row): {"a": 1} for row in range(MOST_PARTS // 4 + 1)}), "more than 100,000 parts"),
        (json.dumps(["x" * 1000] * 600), "a text of"),
        ("[" * 200_000, "lists in lists without end"),
        (" {}", ""),
        ("{*}.weight", ""),
    ],
)
def test_tables_are_limited_by_their_parts(table: str, excess: str) -> None:
    found = excess_of(said(TABLE, table))
    assert found.startswith(excess) if excess else not found


def test_the_connection_of_whoever_exceeds_a_limit_is_closed_and_hears_no_more() -> None:
    taken: list[str] = []
    heard: list[Message] = []

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            taken.append(message["type"])
        assert message["code"] == 1009
        await send({"type": "websocket.send", "bytes": b"late"})

    async def send(message: Message) -> None:
        heard.append(message)

    async def check() -> None:
        says: asyncio.Queue[Message] = asyncio.Queue()
        says.put_nowait({"type": "websocket.connect"})
        for text in ("short", "x" * (LONGEST_TEXT + 1), "never read"):
            says.put_nowait({"type": "websocket.receive", "bytes": said(TABLE, text)})
        await BoundedMessages(page)({"type": "websocket"}, says.get, send)

    run_async(check())
    assert taken == ["websocket.connect", "websocket.receive"]
    assert heard == [{"type": "websocket.close", "code": 1009}]


def page_with_fields() -> None:
    import streamlit as st

    st.text_input("short")
    st.text_input("long", max_chars=10**9)
    st.text_area("area")


def test_no_field_of_a_page_takes_more_than_the_server() -> None:
    assert hasattr(st.text_input, "escapes")
    app = AppTest.from_function(page_with_fields).run()
    limits = [field.proto.max_chars for field in (*app.text_input, *app.text_area)]
    assert limits == [TYPED["text_input"], LONGEST_TEXT, TYPED["text_area"]]
