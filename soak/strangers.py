"""Requests for names and from origins that are not the server's, silent connections, and endless texts.

    python -m soak.strangers [--connections 1000]

Half of the connections are web sockets, the others send no byte; the server may have 1,024 descriptors. Each field of
each page is sent 200,000 patterns, two megabytes and more, as a text, a list and a table.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import socket
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from websockets.exceptions import ConnectionClosed

from senseapp.app.common.texts import LONGEST_TEXT
from soak.large_run_files import SOUND_RUN, import_run
from soak.served import Held, Served, health_seconds, served
from soak.visitor import PageBroke, Visitor, state_of
from tests.asynchronous import run_async

FOREIGN_HOSTS = (
    "evil.example", "evil.example:8501", "localhost.evil.example", "127.0.0.1.evil.example:8501", "localhost.example",
    "localhost:evil", "localhost:", "localhost:8501:8501", "localhost.", "localhost@evil.example",
    "evil.example@localhost", "localhost/evil.example", "localhost#evil", "localhost?evil", "http://localhost", "[::1",
    "::1", "[::1]evil", "[::2]:8501", "10.0.0.1:8501", "192.168.1.7", "0.0.0.0", "0.0.0.0:8501", "127.1", "2130706433",
    "0x7f000001", "127.0.0.2", "169.254.169.254", "", "*", "*.example.org", "loca\tlhost", "localhost evil.example",
    "localhost,evil.example", "xn--lcalhost-9bb", "-localhost", "_", "a..b", "testserver",
)  # fmt: skip
FOREIGN_ORIGINS = (
    "https://evil.example", "http://evil.example:8501", "http://localhost", "http://localhost:1", "https://127.0.0.2",
    "null", "file://localhost:8501", "file://", "ftp://localhost:8501", "ws://localhost:8501", "chrome-extension://abc",
    "http://[::1", "http://[::1]:x", "http://localhost:x", "http://localhost:8501@evil.example",
    "http://evil.example@localhost:8501", "http://localhost:8501/", "http://localhost:8501#a",
    "http://localhost:8501, http://evil.example", "//localhost:8501", "localhost:8501", "http:localhost:8501",
    "http://", "https://", " x", "javascript://localhost:8501", "data:text/html,x",
)  # fmt: skip
_REFUSED = (400, 403)
_HEALTH_SECONDS = 1.0
_GONE_SECONDS = 30.0
_DESCRIPTORS = 1024
_LEFT_OVER = 8
"""Descriptors that a server may hold more than before: of caches, of the question on its health."""


@dataclass(frozen=True, kw_only=True)
class Idle:
    """What came of silent connections: the slowest answer on the server's health, and descriptors before and after."""

    health_seconds: float
    before: int
    most: int
    after: int

    @property
    def is_sound(self) -> bool:
        """Whether the server answered meanwhile, and nothing was left."""
        return self.health_seconds <= _HEALTH_SECONDS and self.after <= self.before + _LEFT_OVER


def foreign(server: Served) -> list[str]:
    """Return the names and origins that were let in, by a request or a connection."""
    own = urllib.parse.urlsplit(server.url).netloc
    shapes = [(host, "") for host in FOREIGN_HOSTS] + [(own, origin) for origin in FOREIGN_ORIGINS]
    found = []
    for host, origin in shapes:
        for kind in ("GET", "DELETE", "connect"):
            status = _status(server.url, kind, host, origin)
            if status not in _REFUSED:
                found.append(f"{kind} {host!r} {origin!r}: {status}")
    return found


def _status(url: str, kind: str, host: str, origin: str) -> int:
    path = "/_stcore/stream" if kind == "connect" else "/_stcore/health"
    with closing(_connection(url)) as connection:
        connection.sendall(_head(kind, path, host, origin))
        line = connection.recv(4096).split(b"\r\n", 1)[0].split()
    return int(line[1]) if len(line) > 1 else 400


def _connection(url: str) -> socket.socket:
    place = urllib.parse.urlsplit(url)
    return socket.create_connection((str(place.hostname), int(place.port or 80)), timeout=20)


def _head(kind: str, path: str, host: str, origin: str) -> bytes:
    lines = [f"{'GET' if kind == 'connect' else kind} {path} HTTP/1.1", f"Host: {host}"]
    if origin:
        lines.append(f"Origin: {origin}")
    if kind == "connect":
        key = base64.b64encode(os.urandom(16)).decode()
        lines += ["Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def idle(server: Served, connections: int) -> Idle:
    """Open that many connections that say nothing, and ask the server how it is until they are gone."""
    server.process.rlimit(psutil.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    own = urllib.parse.urlsplit(server.url).netloc
    before, slowest, most = server.process.num_fds(), health_seconds(server.url), 0
    opened = []
    try:
        for number in range(connections):
            opened.append(_connection(server.url))
            if number % 2:
                opened[-1].sendall(_head("connect", "/_stcore/stream", own, server.url))
            if number % 50 == 0:
                slowest, most = max(slowest, health_seconds(server.url)), max(most, server.process.num_fds())
        deadline = time.monotonic() + _GONE_SECONDS
        while server.process.num_fds() > before + _LEFT_OVER and time.monotonic() < deadline:
            slowest, most = max(slowest, health_seconds(server.url)), max(most, server.process.num_fds())
            time.sleep(0.2)
        return Idle(health_seconds=slowest, before=before, most=most, after=server.process.num_fds())
    finally:
        for connection in opened:
            connection.close()


TYPED = ("text_input", "text_area", "multiselect", "selectbox", "dataframe", "number_input")
"""Kinds of fields that texts, lists or tables are sent for."""
PLACES = ("", "results", "schedule", "compare", "runs", "present")
_PATTERN = "layer[0-9]*.?onv*"
ENDLESS: dict[str, dict[str, str | list[str]]] = {
    "200,000 patterns": {"string_value": "a*," * 200_000},
    "a list of 200,000 patterns": {"string_array_value": ["a*"] * 200_000},
    "two megabytes": {"string_value": "x" * 1_990_000},
    "more than a message": {"string_value": "x" * 2_100_000},
    "a table of 100,000 new rows": {"string_value": json.dumps({"added_rows": [{}] * 100_000})},
    "a table of 60,000 edits": {"string_value": json.dumps({"edited_rows": {row: {"a": 1} for row in range(60_000)}})},
}
"""What is refused, by what it is."""
TAKEN: dict[str, dict[str, str | list[str]]] = {
    "as many patterns as are taken": {"string_value": (_PATTERN + ",") * (LONGEST_TEXT // (len(_PATTERN) + 1))},
    "as long a list as is taken": {"string_array_value": [_PATTERN] * 2500},
}
_MOST_SECONDS = 10.0


@dataclass(kw_only=True)
class Texts:
    """What came of endless texts: how many were sent, and what should not be."""

    sent: int = 0
    health_seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    before: Held | None = None
    after: Held | None = None


async def endless(server: Served, run_id: str, places: Sequence[str] = PLACES, *, most_fields: int = 99) -> Texts:
    """Send each field of each page texts without end, while the server is asked how it is; then see what is left."""
    report = Texts(before=server.held())
    watching = asyncio.create_task(_watch_health(server.url, report))
    for place in places:
        async with Visitor(server.url, place, f"run={run_id}") as page:
            elements = [(each.WhichOneof("type"), each) for each in page.elements()]
        fields = [(kind, getattr(each, kind).id) for kind, each in elements if kind in TYPED][:most_fields]
        for kind, widget_id in fields:
            for what, value in (ENDLESS | TAKEN).items():
                began = time.perf_counter()
                closed = await _closed_by(server, place, run_id, widget_id, value)
                seconds = time.perf_counter() - began
                report.sent += 1
                if closed != (what in ENDLESS) or seconds > _MOST_SECONDS:
                    report.wrong.append(f"{what} for {kind} on {place!r}: closed {closed}, {seconds:.1f} s")
    deadline = time.monotonic() + _GONE_SECONDS
    report.after = server.held()
    while _is_more(report.after, report.before) and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        report.after = server.held()
    watching.cancel()
    if _is_more(report.after, report.before):
        report.wrong.append(f"left after {_GONE_SECONDS:.0f} s: {report.after} instead of {report.before}")
    if report.health_seconds > _HEALTH_SECONDS:
        report.wrong.append(f"health took {report.health_seconds:.1f} s")
    return report


async def _closed_by(
    server: Served, place: str, run_id: str, widget_id: str, value: dict[str, str | list[str]]
) -> bool:
    """Return whether the server closes the connection of a page that says so of a field."""
    state = state_of(widget_id, value)
    async with Visitor(server.url, place, f"run={run_id}") as page:
        try:
            await page.say(state)
        except ConnectionClosed:
            return True
        except PageBroke as error:  # a list for a field of texts breaks the page of whoever sends it, and no other
            return "The connection" in str(error)
    return False


def _is_more(now: Held, before: Held) -> bool:
    return now.threads > before.threads + _LEFT_OVER or now.files > before.files + _LEFT_OVER


async def _watch_health(url: str, report: Texts) -> None:
    while True:
        report.health_seconds = max(report.health_seconds, await asyncio.to_thread(health_seconds, url))
        await asyncio.sleep(0.2)


def main(arguments: Sequence[str]) -> int:
    """Try all three, and say what came of it in a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run_id = import_run(Path(folder), SOUND_RUN.read_bytes())
        with served(Path(folder), module="soak.scripted_server", OMP_NUM_THREADS="1") as server:
            let_in, silent = foreign(server), idle(server, given.connections)
            texts = run_async(endless(server, run_id))
    shapes = len(FOREIGN_HOSTS) + len(FOREIGN_ORIGINS)
    sys.stdout.write(f"{len(let_in)} of {3 * shapes} foreign requests were let in {let_in}\n{silent}\n{texts}\n")
    return int(bool(let_in) or not silent.is_sound or bool(texts.wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
