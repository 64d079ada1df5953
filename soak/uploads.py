"""Hostile uploads beside sound ones, all at once: idle, slow, byte by byte, without length, over quota, unasked for.

Run as ``python -m soak.uploads [--uploads 200]``; exits with 0 if every sound file lies on the disk byte for
byte, every other left nothing within 60 seconds of its socket, and the server's memory grew by less than 100 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from urllib.parse import urlsplit

from soak.served import MB, Served, served
from soak.visitor import XSRF_COOKIE, Visitor, cookie_header

MOST_SECONDS = 60.0  # that anything may outlive its socket, or an idle one its last byte
MOST_GROWN_BYTES = 100 * MB
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "SENSEAPP_RUNS_PER_MINUTE": "100000",
    "SENSEAPP_PER_PERSON_MB": "1000",
    "SENSEAPP_MAX_UPLOAD_MB": "2048",
}
SOUND = ("whole", "bytewise", "unannounced")
HOSTILE = ("idle", "slow", "broken off", "over quota", "unasked", "without token", "two gigabytes")
_BOUNDARY = b"x0123456789"
_EACH_SESSION = 20


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of the uploads.

    Attributes:
        sent: of each kind.
        wrong: sentences on what should not be.
        grown_bytes: most memory that the server held more than before.
        seconds: until nothing was left of the hostile ones.
    """

    sent: int
    wrong: tuple[str, ...]
    grown_bytes: int
    seconds: float


def form(content: bytes) -> bytes:
    head = b'Content-Disposition: form-data; name="file"; filename="pictures.zip"\r\nContent-Type: application/zip'
    return b"--%s\r\n%s\r\n\r\n%s\r\n--%s--\r\n" % (_BOUNDARY, head, content, _BOUNDARY)


async def pieces(kind: str, body: bytes, chance: random.Random) -> AsyncIterator[bytes]:
    """Yield what is sent after the header."""
    if kind == "unannounced":
        for start in range(0, len(body), 70_000):
            piece = body[start : start + 70_000]
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
        yield b"0\r\n\r\n"
    elif kind == "bytewise":
        for place in range(len(body)):
            yield body[place : place + 1]
    elif kind == "slow":
        for place in range(len(body)):
            yield body[place : place + 1]
            await asyncio.sleep(0.5)
    elif kind in ("idle", "two gigabytes"):
        yield body[:70]
        await asyncio.sleep(2 * MOST_SECONDS)
    else:
        start = 0
        while start < len(body):
            size = chance.randint(1, 200_000)
            yield body[start : start + size]
            start += size


async def send(server: Served, visitor: Visitor, kind: str, content: bytes, chance: random.Random) -> int:
    """Send one form and return the status of the answer; 0 where the connection ended without one."""
    address, body = urlsplit(server.url), form(content)
    session = "0" * 36 if kind == "unasked" else visitor.session_id
    announced = {"two gigabytes": 2_000_000_000, "over quota": 2_000_000_000, "broken off": len(body) + 10}
    length = f"Content-Length: {announced.get(kind, len(body))}"
    token = "" if kind == "without token" else visitor.cookies[XSRF_COOKIE]
    lines = (
        f"PUT /_stcore/upload_file/{session}/{os.urandom(8).hex()} HTTP/1.1",
        f"Host: {address.netloc}",
        f"Cookie: {cookie_header(visitor.cookies)}",
        f"X-Xsrftoken: {token}",
        f"Content-Type: multipart/form-data; boundary={_BOUNDARY.decode()}",
        "Transfer-Encoding: chunked" if kind == "unannounced" else length,
        "Connection: close",
        "\r\n",
    )
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    sending = asyncio.create_task(_send_all(writer, "\r\n".join(lines).encode(), pieces(kind, body, chance)))
    answering = asyncio.create_task(reader.readline())
    try:
        await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
        if kind == "broken off":
            return 0
        line = await asyncio.wait_for(answering, 2 * MOST_SECONDS)
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        for task in (sending, answering):
            task.cancel()
        await asyncio.gather(sending, answering, return_exceptions=True)
        writer.close()


async def _send_all(writer: asyncio.StreamWriter, head: bytes, body: AsyncIterator[bytes]) -> None:
    writer.write(head)
    async for piece in body:
        writer.write(piece)
        await writer.drain()


def stored(server: Served) -> list[Path]:
    return [path for path in (server.home / "uploads").rglob("*") if path.is_file()]


def clear(server: Served) -> None:
    """Remove what is stored; the server sweeps what its socket has left."""
    for path in stored(server):
        path.unlink(missing_ok=True)


def _contents(server: Served) -> list[bytes]:
    """Return what is stored, sorted; what the server takes away meanwhile is not."""
    found = []
    for path in stored(server):
        with suppress(FileNotFoundError):
            found.append(path.read_bytes())
    return sorted(found)


async def uploads(server: Served, count: int, *, content_bytes: int = 300_000, kinds: tuple[str, ...] = ()) -> Report:
    """Send ``count`` forms at once, of all kinds in turn, and see what is left of them."""
    chance = random.Random(0)
    sent = list(islice(cycle(kinds or (*SOUND, *HOSTILE)), count))
    contents = [chance.randbytes(3000 if kind in ("bytewise", "slow") else content_bytes) for kind in sent]
    wrong: list[str] = []
    async with AsyncExitStack() as stack:
        people = [await stack.enter_async_context(Visitor(server.url)) for _ in range(-(-count // _EACH_SESSION))]
        for person in people:
            await person.set("button_group", "Where they come from", string_array_value=["Upload images"])
        watch = _Memory(server)
        watching = asyncio.create_task(watch.watch())
        began = time.perf_counter()
        statuses = await asyncio.gather(
            *(
                send(server, people[number // _EACH_SESSION], kind, contents[number], chance)
                for number, kind in enumerate(sent)
            )
        )
        sound = [content for kind, content in zip(sent, contents, strict=True) if kind in SOUND]
        while (found := _contents(server)) != sorted(sound) and time.perf_counter() - began < 2 * MOST_SECONDS:
            await asyncio.sleep(0.2)
        seconds = time.perf_counter() - began
        watching.cancel()
        for kind, status in zip(sent, statuses, strict=True):
            if (status == 204) != (kind in SOUND):
                wrong.append(f"{kind} was answered with {status}")
        if found != sorted(sound):
            wrong.append(f"{len(found)} files lie on the disk, not byte for byte the {len(sound)} sound ones")
    if seconds > MOST_SECONDS:
        wrong.append(f"something was left for {seconds:.0f} seconds")
    return Report(sent=count, wrong=tuple(dict.fromkeys(wrong)), grown_bytes=watch.grown_bytes, seconds=seconds)


class _Memory:
    """The most memory that a server holds, beyond what it held at first."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._before = server.held().memory_bytes
        self.grown_bytes = 0

    async def watch(self) -> None:
        while True:
            held = await asyncio.to_thread(self._server.held)
            self.grown_bytes = max(self.grown_bytes, held.memory_bytes - self._before)
            await asyncio.sleep(0.2)


def main(arguments: list[str]) -> int:
    """Send as many as asked, and say what came of them in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uploads", type=int, default=200)
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), module="soak.scripted_server", **SETTINGS) as server,
    ):
        asyncio.run(uploads(server, 10, kinds=SOUND))  # warms up
        clear(server)
        report = asyncio.run(uploads(server, given.uploads))
    sys.stdout.write(
        f"{report.sent} uploads at once: nothing left of hostile ones after {report.seconds:.0f} s, the server grew by "
        f"{report.grown_bytes / MB:.0f} MB; wrong: {'; '.join(report.wrong) or 'nothing'}\n"
    )
    return int(bool(report.wrong) or report.grown_bytes > MOST_GROWN_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
