"""Streamlit's own files: the same bytes from memory, and everything else from where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
import streamlit
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from senseapp.ui.serving import files_in_memory
from senseapp.ui.serving.early_components import page_files
from senseapp.ui.serving.files_in_memory import FilesInMemory, load_page_files
from senseapp.ui.serving.headers import SecurityHeaders

FOLDER = Path(streamlit.__file__).parent / "static" / "static"
FILES = {path.suffix: f"{path.parent.name}/{path.name}" for path in sorted(FOLDER.glob("*/*"))}
PASSED_ON = "passed on"


def ask(path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> httpx.Response:
    def rest(request: Request) -> Response:
        return PlainTextResponse(PASSED_ON)

    routes = [Route("/{path:path}", rest, methods=["GET", "POST"])]
    app = Starlette(routes=routes, middleware=[Middleware(SecurityHeaders), Middleware(FilesInMemory)])

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, path, headers={"Accept-Encoding": "identity", **(headers or {})})

    return asyncio.run(asked())


@pytest.mark.parametrize("suffix", [".js", ".css", ".woff2"])
@pytest.mark.parametrize("accepted", ["identity", "gzip, deflate, br"])
def test_a_file_comes_as_it_is_on_the_disk(suffix: str, accepted: str) -> None:
    for _ in range(2):  # what one answer is given on its way stays out of the next
        answer = ask(f"/static/{FILES[suffix]}", headers={"Accept-Encoding": accepted})
        assert answer.status_code == 200
        assert answer.content == (FOLDER / FILES[suffix]).read_bytes()  # decompressed, where it was compressed
        assert ("gzip" in answer.headers.get("Content-Encoding", "")) == ("gzip" in accepted and suffix != ".woff2")
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert answer.headers.get_list("X-Content-Type-Options") == ["nosniff"]


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".js", "text/javascript"), (".css", "text/css"), (".woff2", "font/woff2")]
)
def test_browsers_are_told_what_a_file_is(suffix: str, kind: str) -> None:
    assert ask(f"/static/{FILES[suffix]}").headers["Content-Type"].split(";")[0] == kind


def test_an_app_below_a_path_of_its_own_is_served_too() -> None:
    assert ask(f"/tools/senseapp/static/{FILES['.css']}").content == (FOLDER / FILES[".css"]).read_bytes()


@pytest.mark.parametrize(
    "path", ["/", "/results", "/static/", "/static/js/gone.js", "/static/js/../../index.html", f"/{FILES['.js']}"]
)
def test_other_addresses_are_passed_on(path: str) -> None:
    assert ask(path).text == PASSED_ON


def test_other_questions_about_a_file_are_passed_on() -> None:
    address = f"/static/{FILES['.js']}"
    assert ask(address, "POST").text == PASSED_ON
    assert ask(address, headers={"Range": "bytes=0-9"}).text == PASSED_ON
    assert "immutable" not in ask(address, "HEAD").headers.get("Cache-Control", "")


def test_what_a_first_visit_asks_for_is_loaded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    files_in_memory._file.cache_clear()
    load_page_files()
    assert files_in_memory._file.cache_info().currsize == len(page_files()) > 100
    monkeypatch.setattr(files_in_memory, "_FOLDER", Path("gone"))
    load_page_files()  # none is read again
