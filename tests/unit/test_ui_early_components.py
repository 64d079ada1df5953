"""Which files browsers are told to fetch early, and on which answers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
import streamlit
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from senseapp.ui.serving import early_components
from senseapp.ui.serving.early_components import EarlyComponents, component_files, page_files

STATIC = Path(streamlit.__file__).parent / "static"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A page of scripts like Streamlit's."""
    folder = tmp_path / "static" / "js"
    folder.mkdir(parents=True)
    (tmp_path / "index.html").write_text('<script src="./static/js/index.1.js"></script>')
    for name, text in {
        "index.1.js": "",
        "ArrowVegaLiteChart.a.js": 'import{a}from"./index.1.js";import{b}from"./embed.b.js";import"./shared.c.js"',
        "embed.b.js": 'import"./shared.c.js";import"./gone.js"',
        "shared.c.js": 'import{e}from"./embed.b.js"',  # a circle
        "DataFrame.d.js": 'import"./shared.c.js";later=()=>import("./Editor.e.js")',
        "Editor.e.js": "",
        "DataFrameOther.js": "",
    }.items():
        (folder / name).write_text(text)
    return folder


def test_components_and_all_that_they_import_are_named_once(scripts: Path) -> None:
    assert component_files(scripts) == ("ArrowVegaLiteChart.a.js", "embed.b.js", "shared.c.js", "DataFrame.d.js")


def test_a_first_visit_asks_for_the_page_s_own_files_too(scripts: Path) -> None:
    assert page_files(scripts) == ("index.1.js", *component_files(scripts))


def test_a_release_that_names_them_otherwise_gets_no_header(tmp_path: Path) -> None:
    assert component_files(tmp_path / "static" / "js") == ()
    assert page_files(tmp_path / "static" / "js") == ()


def test_the_files_of_the_installed_release_are_there() -> None:
    names = component_files()
    for component in early_components._COMPONENTS:
        assert [name.split(".")[0] for name in names].count(component) == 1
    assert all((STATIC / "static" / "js" / name).is_file() for name in names)
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not [name for name in names if name in index]


def link_of(answer: Response) -> str:
    def route(request: Request) -> Response:
        return answer

    app = Starlette(routes=[Route("/", route)], middleware=[Middleware(EarlyComponents)])

    async def ask() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.get("/")).headers.get("Link", "")

    return asyncio.run(ask())


def test_pages_name_the_files_and_other_answers_do_not() -> None:
    named = re.findall(r"<\./static/js/([^>]+)>; rel=modulepreload; crossorigin", link_of(HTMLResponse("<html>")))
    assert tuple(named) == component_files()
    assert link_of(JSONResponse({})) == ""
