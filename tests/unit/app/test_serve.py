"""What the server does while it runs, beside serving pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from senseapp.app.server import serve
from senseapp.app.server.guards import KnownBase
from senseapp.compat.streamlit_internals import KNOWN_BASE
from senseapp.core.errors import StorageFailed
from tests.asynchronous import run_async


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the process's own loggers and backends as they are."""
    monkeypatch.setattr(serve, "_log_with_the_rest", lambda: None)
    monkeypatch.setattr(serve, "close_backends", lambda: None)


def live_for(seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
    async def live() -> None:
        async with serve._lifespan(st.App("app.py")):
            deadline = asyncio.get_running_loop().time() + seconds
            while not until() and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.01)

    run_async(live())


def test_the_engine_is_loaded_before_anybody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(serve, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(serve.backend, "warm_up_ahead", lambda: loaded.append("engine"))
    live_for(60, until=lambda: bool(loaded))
    assert loaded == ["engine"]


def test_a_server_that_ends_at_once_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(serve.backend, "warm_up_ahead", lambda: loaded.append("engine"))
    live_for(0)
    assert loaded == []


def test_a_home_that_cannot_be_used_is_left_for_the_pages_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fail() -> None:
        asked.append("engine")
        raise StorageFailed("no such folder")

    monkeypatch.setattr(serve, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(serve.backend, "warm_up_ahead", fail)
    live_for(60, until=lambda: bool(asked))
    assert asked == ["engine"]


def test_pages_are_told_where_their_server_is_and_nothing_else_is_touched() -> None:
    routes = [
        Route("/results", lambda _: HTMLResponse("<html><head><title>é</title></head></html>")),
        Route("/data", lambda _: JSONResponse({"html": "<head>"})),
    ]
    with TestClient(
        Starlette(routes=routes, middleware=[Middleware(KnownBase), Middleware(GZipMiddleware, minimum_size=1)])
    ) as client:
        asked = {"accept": "text/html,*/*;q=0.8"}
        page, data = client.get("/results", headers=asked), client.get("/data", headers=asked)
    assert page.text == f"<html><head><script>{KNOWN_BASE}</script><title>é</title></head></html>"
    assert "content-length" not in page.headers  # of a page that got longer
    assert data.json() == {"html": "<head>"}
