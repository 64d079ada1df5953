"""Limits on what pages send: each text, list and table of a message, generated from Streamlit's own record types."""

from __future__ import annotations

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
from senseapp.app.server.limits import LONGEST_ADDRESS, MOST_PARTS, BoundedMessages, excess_of
from tests.asynchronous import run_async

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


def test_what_is_no_message_is_left_to_streamlit() -> None:
    assert excess_of(b"\xff\xff") == ""
    assert excess_of(b"") == ""


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
