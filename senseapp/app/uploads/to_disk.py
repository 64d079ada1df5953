"""Write every upload to disk while it comes, in place of Streamlit's copy in memory.

Starlette's own parser puts files where this process has its temporary ones, without a limit on their size and without
regard to the room that a person has left; so only the parser under it is used.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from anyio import CancelScope, fail_after, to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from senseapp.app.logins import logouts
from senseapp.app.uploads.registry import IncomingFile, UploadRegistry
from senseapp.compat.streamlit_internals import UPLOAD_ROUTE
from senseapp.core.files import MB
from senseapp.core.foreign_values import BadValue, whole
from senseapp.server.service import Service
from senseapp.server.settings import LOCAL_OWNER, ServerSettings

_FORM_BYTES = 8 * 1024  # of the form around the file, at most
_WINDOW_SECONDS = 30.0  # a pause of a mobile connection is shorter; longer holds the place of others
_WINDOW_BYTES = 64 * 1024  # that come within, at least
_CLOSE = {"Connection": "close"}


class FormFile:
    """Reads a form that holds one file and nothing else, in pieces of any size.

    Args:
        content_type: of the request, ``multipart/form-data; boundary=...``.

    Raises HTTPException 400, from here and from :meth:`read`, if it is no such form.
    """

    def __init__(self, content_type: str) -> None:
        self._boundary: bytes = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not self._boundary:
            raise _malformed()
        self._field, self._value, self._head, self._content = (bytearray() for _ in range(4))
        self._parts = 0
        self._complete = False
        self._parser = MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": _appending_to(self._field),
                "on_header_value": _appending_to(self._value),
                "on_header_end": self._end_header,
                "on_part_data": _appending_to(self._content),
                "on_end": self._end,
            },
        )

    def read(self, piece: bytes) -> None:
        """Take in the next piece of the form."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _malformed() from error
        if len(self._head) + len(self._field) + len(self._value) > _FORM_BYTES:
            raise _malformed()

    def content(self) -> bytes:
        """Return the bytes of the file that have come since the last call."""
        taken = bytes(self._content)
        self._content.clear()
        return taken

    @property
    def num_waiting(self) -> int:
        """Bytes that :meth:`content` would return."""
        return len(self._content)

    def without_content(self) -> bytes:
        """Return the form with the file's name and type but none of its bytes.

        Raises HTTPException 400 if the form ended early.
        """
        if not self._complete or self._parts != 1:
            raise _malformed()
        line = b"--" + self._boundary
        return line + b"\r\n" + bytes(self._head) + b"\r\n\r\n" + line + b"--\r\n"

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > 1:
            raise HTTPException(400, "Send one file at a time.")

    def _end_header(self) -> None:
        self._head += self._field + b": " + self._value + b"\r\n"
        self._field.clear()
        self._value.clear()

    def _end(self) -> None:
        self._complete = True


def _appending_to(buffer: bytearray) -> Callable[[bytes, int, int], None]:
    """Return what collects a header or content that comes in several pieces."""

    def append(data: bytes, start: int, end: int) -> None:
        buffer.extend(memoryview(data)[start:end])

    return append


def _malformed() -> HTTPException:
    return HTTPException(400, "This is not a form with one file.")


class UploadsToDisk:
    """Middleware around Streamlit's upload route; everything else passes by.

    Args:
        app: what it wraps.
        registry: knows whose the files are, and takes them.
    """

    def __init__(self, app: ASGIApp, registry: UploadRegistry) -> None:
        self._app = app
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        found = UPLOAD_ROUTE.search(scope["path"]) if scope["type"] == "http" else None
        if found is not None and scope["method"] == "DELETE":
            service = self._registry.service_of(found["session"])
            if service is not None and _is_of(scope, service):
                await to_thread.run_sync(self._registry.drop, found["session"], found["file"])
        elif found is not None and scope["method"] == "PUT":
            receive = self._storing(scope, receive, found["session"], found["file"])
        await self._app(scope, receive, send)

    def _storing(self, scope: Scope, receive: Receive, session_id: str, file_id: str) -> Receive:
        """Return a ``receive`` that stores the file when it is called first, and gives the form without it."""
        stored = False

        async def receive_form() -> Message:
            nonlocal stored
            if stored:
                return await receive()
            stored = True
            service = self._registry.service_of(session_id)
            if service is None or not _is_of(scope, service):
                raise HTTPException(403, "No page of this session has asked for a file.")
            form = FormFile(Headers(scope=scope).get("content-type", ""))
            incoming = await to_thread.run_sync(IncomingFile, service, max(0, _announced_bytes(scope) - _FORM_BYTES))
            try:
                await _transfer(receive, form, incoming)
                body = form.without_content()
            except BaseException:
                with CancelScope(shield=True):
                    await to_thread.run_sync(incoming.abandon)
                raise
            self._registry.keep(session_id, file_id, await to_thread.run_sync(incoming.finish), service)
            return {"type": "http.request", "body": body, "more_body": False}

        return receive_form


async def _transfer(receive: Receive, form: FormFile, incoming: IncomingFile) -> None:
    """Write a form to the disk as it comes, at a least rate; only the time spent on waiting for it counts.

    Raises:
        HTTPException: 408: less than the least has come within a window; 413: the file is too large.
    """
    most_bytes = ServerSettings.configured().upload_mb * MB + _FORM_BYTES
    num_bytes, more = 0, True
    seconds, missing = _WINDOW_SECONDS, _WINDOW_BYTES  # left of this window
    while more:
        began = time.monotonic()
        try:
            with fail_after(seconds):
                message = await receive()
        except TimeoutError as error:
            raise HTTPException(408, "The file came too slowly, or not at all.", _CLOSE) from error
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        seconds, missing = seconds - (time.monotonic() - began), missing - len(piece)
        if missing <= 0:
            seconds, missing = _WINDOW_SECONDS, _WINDOW_BYTES
        num_bytes += len(piece)
        if num_bytes > most_bytes:
            raise HTTPException(413, "The file is too large.", _CLOSE)
        form.read(piece)
        more = message.get("more_body", False)
        if form.num_waiting >= 128 * 1024 or not more:  # held in memory for each file, at most
            await to_thread.run_sync(incoming.write, form.content())


def _is_of(scope: Scope, service: Service) -> bool:
    """Return whether the person of ``service`` sent a request; without login, all visitors are the same person."""
    return service.owner == LOCAL_OWNER or logouts().owner(HTTPConnection(scope).cookies) == service.owner


def _announced_bytes(scope: Scope) -> int:
    """Return the announced size of the body; 0 where none is announced."""
    with suppress(BadValue):
        return whole(Headers(scope=scope).get("content-length"), "the size")
    return 0
