"""Streamlit's scripts, styles and fonts, answered from memory and compressed.

A first visit asks for some 140 of them. Streamlit looks each up on the disk, in another thread, and sends it as it is:
1.5 ms of this server's time apiece, a fifth of a second of the visit, and 4.7 MB, which take seconds over a slow line.
They never change, as their names hold hashes of what is in them, so they are read and compressed once.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import streamlit
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from senseapp.ui.serving.early_components import page_files

__all__ = ["FilesInMemory", "load_page_files"]

_FOLDER = Path(streamlit.__file__).parent / "static" / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2"}
_COMPRESSED_ALREADY = {".woff2"}
_LEVEL = 6  # the next ones take half as long again for a three-hundredth less
_HEADERS = {"Cache-Control": "public, immutable, max-age=31536000", "Vary": "Accept-Encoding"}


class FilesInMemory:
    """Middleware that answers for these files itself; requests for parts of one, and all else, are passed on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._names = {f"{path.parent.name}/{path.name}" for path in _FOLDER.glob("*/*") if path.suffix in _TYPES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        name = scope["path"].rpartition("/static/")[2] if scope["type"] == "http" else ""
        headers = Headers(scope=scope) if name in self._names and scope["method"] == "GET" else None
        if headers is None or "range" in headers:
            await self._app(scope, receive, send)
            return
        answer = _file(name).answer(zipped="gzip" in headers.get("accept-encoding", ""))
        await answer(scope, receive, send)


def load_page_files() -> None:
    """Load what a first visit asks for."""
    for name in page_files():
        _file(f"js/{name}")


@dataclass(frozen=True)
class _File:
    """One file as it is kept.

    Attributes:
        zipped: the same compressed; None where that gains nothing.
    """

    content_type: str
    plain: bytes
    zipped: bytes | None

    def answer(self, *, zipped: bool) -> Response:
        """Return a new answer with the file, ``zipped`` if the browser takes that."""
        if zipped and self.zipped is not None:
            headers = _HEADERS | {"Content-Encoding": "gzip"}
            return Response(self.zipped, headers=headers, media_type=self.content_type)
        return Response(self.plain, headers=_HEADERS, media_type=self.content_type)


@cache
def _file(name: str) -> _File:
    path = _FOLDER / name
    plain = path.read_bytes()
    zipped = None if path.suffix in _COMPRESSED_ALREADY else gzip.compress(plain, _LEVEL, mtime=0)
    return _File(content_type=_TYPES[path.suffix], plain=plain, zipped=zipped)
