"""Write uploads to disk while they come, in place of Streamlit's copy in memory.

Streamlit's own route still answers: it checks the forgery token, the session and the announced size before it asks
for the first byte. What it is given then is the same form with an empty file; the bytes are on the disk, where the
page finds them through :class:`~senseapp.ui.serving.arrivals.Arrivals`.
"""

from __future__ import annotations

from anyio import CancelScope, to_thread
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from senseapp.compat.streamlit_internals import UPLOAD_ROUTE
from senseapp.service import UploadLimits
from senseapp.ui.serving.arrivals import Arrivals
from senseapp.ui.serving.form_file import FormFile
from senseapp.ui.serving.incoming_file import IncomingFile

SMALL_BYTES = 4 * 1024 * 1024
"""Forms up to this size take Streamlit's own way through memory; any field can read them."""

_FORM_BYTES = 8 * 1024  # of the form around the file, at most
_WRITE_BYTES = 1024 * 1024


class UploadsToDisk:
    """Middleware around Streamlit's upload route; everything else passes by.

    Args:
        app: what it wraps.
        arrivals: knows whose the files are, and takes them.
    """

    def __init__(self, app: ASGIApp, arrivals: Arrivals) -> None:
        self._app = app
        self._arrivals = arrivals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        found = UPLOAD_ROUTE.search(scope["path"]) if scope["type"] == "http" else None
        if found is not None and scope["method"] == "DELETE":
            await to_thread.run_sync(self._arrivals.drop, found["session"], found["file"])
        elif found is not None and scope["method"] == "PUT" and _announced_bytes(scope) > SMALL_BYTES:
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
            service = self._arrivals.service_of(session_id)
            if service is None:
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
            self._arrivals.keep(session_id, file_id, await to_thread.run_sync(incoming.finish), service)
            return {"type": "http.request", "body": body, "more_body": False}

        return receive_form


async def _transfer(receive: Receive, form: FormFile, incoming: IncomingFile) -> None:
    most_bytes = UploadLimits.configured().file_bytes + _FORM_BYTES
    num_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        num_bytes += len(piece)
        if num_bytes > most_bytes:
            raise HTTPException(413, "The file is too large.")
        form.read(piece)
        more = message.get("more_body", False)
        if form.num_waiting >= _WRITE_BYTES or not more:
            await to_thread.run_sync(incoming.write, form.content())


def _announced_bytes(scope: Scope) -> int:
    """Return the announced size of the body, as large as allowed where none is announced."""
    text = Headers(scope=scope).get("content-length", "")
    return int(text) if text.isdecimal() else UploadLimits.configured().file_bytes
