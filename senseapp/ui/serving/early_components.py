"""Lets browsers fetch the code that draws charts, tables and fields while they still start the page.

Streamlit's page loads a component's code only once the first of its kind has come from the server; by then it could
have been there. A ``Link`` header names those files, so that they are fetched beside the page's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import streamlit
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["EarlyComponents", "component_files", "page_files"]

_SCRIPTS = Path(streamlit.__file__).parent / "static" / "static" / "js"
_COMPONENTS = (
    "ArrowVegaLiteChart",
    "DataFrame",
    "Selectbox",
    "Slider",
    "ButtonGroup",
    "NumberInput",
    "DownloadButton",
    "PageLink",
)
_IMPORT = re.compile(r'(?:from|import)"\./([^"/]+\.js)"')


class EarlyComponents:
    """Middleware that adds the header to pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._link = ", ".join(f"<./static/js/{name}>; rel=modulepreload; crossorigin" for name in component_files())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_with_link(message: Message) -> None:
            if message["type"] == "http.response.start" and self._link:
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers["Link"] = self._link
            await send(message)

        await self._app(scope, receive, send_with_link)


def component_files(scripts: Path = _SCRIPTS) -> tuple[str, ...]:
    """Return the names of the files that charts, tables and fields are drawn by, and of all that these import.

    Without those that the page itself begins with. Empty where a release of Streamlit names them otherwise, which
    costs nothing but time.
    """
    own = set(_named_by_page(scripts))
    return tuple(name for path in _component_paths(scripts) for name in _with_imports(path, own))


def page_files(scripts: Path = _SCRIPTS) -> tuple[str, ...]:
    """Return the names of all files that a first visit asks for: the page's own, and those of components."""
    known: set[str] = set()
    paths = (*(scripts / name for name in _named_by_page(scripts)), *_component_paths(scripts))
    return tuple(name for path in paths for name in _with_imports(path, known))


def _named_by_page(scripts: Path) -> list[str]:
    index = scripts.parents[1] / "index.html"
    return re.findall(r"js/([^\"/]+\.js)", index.read_text(encoding="utf-8")) if index.is_file() else []


def _component_paths(scripts: Path) -> list[Path]:
    return [path for component in _COMPONENTS for path in sorted(scripts.glob(f"{component}.*.js"))]


def _with_imports(path: Path, known: set[str]) -> Iterator[str]:
    """Yield ``path`` and what it imports, those unknown so far, and make them known."""
    if path.name in known or not path.is_file():
        return
    known.add(path.name)
    yield path.name
    for name in _IMPORT.findall(path.read_text(encoding="utf-8")):
        yield from _with_imports(path.parent / name, known)
