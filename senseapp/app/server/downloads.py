"""Files that download buttons make, at random addresses that answer only the browser and person who asked."""

import functools
import mimetypes
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread
from starlette.requests import HTTPConnection
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from senseapp.app.common.download import Download, new_file
from senseapp.app.logins import logouts
from senseapp.app.server.guards import Around
from senseapp.compat.streamlit_internals import Made, address_of, browser_key, is_connected
from senseapp.core.errors import SenseError
from senseapp.core.files import storage_errors
from senseapp.server.settings import LOCAL_OWNER

_ROUTE = re.compile(r"/download/(?P<token>[A-Za-z0-9_-]{43})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """One file at one address.

    Attributes:
        path: of the file.
        own: whether it goes with the offer.
        download: who may fetch it, and what makes it.
        until: when it expires.
    """

    path: Path
    own: bool
    download: Download
    name: str
    mime: str
    until: float


class DownloadRegistry:
    """Files that were made for a click, by the token in their address; safe to use from any thread.

    Args:
        is_open: tells whether a session's page is open.
        clock: seconds that never move back.
    """

    def __init__(
        self, is_open: Callable[[str], bool] = is_connected, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_open = is_open
        self._clock = clock
        self._lock = threading.Lock()
        self._offers: dict[str, _Offer] = {}

    def deliver(self, download: Made, name: str, mime: str) -> str:
        """Make the file of a pressed button and return its address.

        Raises:
            TypeError: the button was given something else than a :class:`Download`.
            SenseError: the file cannot be made.
        """
        if not isinstance(download, Download):
            raise TypeError(f"Buttons are given downloads; {name} is none.")
        download.check()
        content = download.make()
        path = content if isinstance(content, Path) else new_file()
        if not isinstance(content, Path):
            with storage_errors(f"the folder {path.parent.name}"):
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        token = secrets.token_urlsafe(32)  # bytes, which are 43 letters
        offer = _Offer(
            path=path,
            own=download.is_temporary or not isinstance(content, Path),
            download=download,
            name=name,
            mime=mime or mimetypes.guess_type(name)[0] or "application/octet-stream",
            until=self._clock() + 600.0,  # for a click: the browser fetches at once, and may resume for some minutes
        )
        with self._lock:
            self._offers[token] = offer
            session = [key for key, other in self._offers.items() if other.download.session == download.session]
        self._remove(session[:-32])
        return address_of(f"download/{token}")

    def find(self, token: str, connection: HTTPConnection) -> _Offer | None:
        """Return the file of ``token`` if ``connection`` may fetch it."""
        with self._lock:
            offer = self._offers.get(token)
        if offer is None or self._is_over(offer):
            return None
        asked = offer.download
        own_browser = bool(asked.browser) and secrets.compare_digest(browser_key(connection.cookies), asked.browser)
        same_person = asked.owner in (LOCAL_OWNER, logouts().owner(connection.cookies))
        with suppress(SenseError):
            asked.check()
            return offer if own_browser and same_person and offer.path.is_file() else None
        return None

    def sweep(self) -> None:
        """Remove what has expired or whose page was closed."""
        self._remove([token for token, offer in list(self._offers.items()) if self._is_over(offer)])

    def close(self) -> None:
        """Remove every file that was made for a click."""
        self._remove(list(self._offers))

    def _remove(self, tokens: Sequence[str]) -> None:
        with self._lock:
            removed = [offer for token in tokens if (offer := self._offers.pop(token, None)) is not None]
        for offer in removed:
            if offer.own:
                shutil.rmtree(offer.path.parent, ignore_errors=True)

    def _is_over(self, offer: _Offer) -> bool:
        return offer.until < self._clock() or not self._is_open(offer.download.session)


@functools.cache
def download_registry() -> DownloadRegistry:
    """Return this process's registry."""
    return DownloadRegistry()


class Downloads(Around):
    """Middleware that answers the addresses of a registry; it streams from the disk, and nothing compresses it anew."""

    def __init__(self, app: ASGIApp, registry: DownloadRegistry) -> None:
        super().__init__(app)
        self._registry = registry

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (found := _ROUTE.search(scope["path"])) is None:
            await self._app(scope, receive, send)
        else:
            response = await to_thread.run_sync(self._answer, found["token"], scope)
            await response(scope, receive, send)

    def _answer(self, token: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Method Not Allowed", 405)
        offer = self._registry.find(token, HTTPConnection(scope))
        if offer is None:
            return PlainTextResponse("There is no such download, or it has expired. Press the button again.", 404)
        headers = {"Cache-Control": "no-store"}
        response = FileResponse(offer.path, filename=offer.name, media_type=offer.mime, headers=headers)
        response.chunk_size = 256 * 1024  # read and sent at once: larger ones hold more memory for each slow reader
        return response
