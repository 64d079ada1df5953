"""What the server does while it runs beside serving pages, its options, and who may read Streamlit's metrics."""

import asyncio
from collections.abc import Callable

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from senseapp.app.server import serve
from senseapp.app.server.guards import KnownBase, PrivateMetrics
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


@pytest.mark.parametrize("is_usable", [True, False])  # pages tell of a home that cannot be used
def test_the_engine_is_loaded_before_anybody_comes(monkeypatch: pytest.MonkeyPatch, is_usable: bool) -> None:
    asked: list[str] = []

    def load() -> None:
        asked.append("engine")
        if not is_usable:
            raise StorageFailed("no such folder")

    monkeypatch.setattr(serve, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(serve.backend, "warm_up_ahead", load)
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


def status(path: str, authorization: str = "") -> int:
    routes = [Route("/{path:path}", lambda _: PlainTextResponse("numbers"))]
    client = TestClient(Starlette(routes=routes, middleware=[Middleware(PrivateMetrics)]))
    return client.get(path, headers={"Authorization": authorization}).status_code


@pytest.mark.parametrize("path", ["/_stcore/metrics", "/base/_stcore/metrics", "/_stcore/metrics/", "/_stcore/agent/x"])
def test_metrics_are_hidden_without_the_token(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.delenv("SENSEAPP_METRICS_TOKEN", raising=False)
    assert [status(path, sent) for sent in ("", "Bearer ", "Bearer None")] == [404, 404, 404]
    monkeypatch.setenv("SENSEAPP_METRICS_TOKEN", "correct-horse")
    assert [status(path, sent) for sent in ("", "Bearer wrong", "correct-horse2")] == [404, 404, 404]
    assert status(path, "Bearer correct-horse") == status("/_stcore/health") == 200


@pytest.mark.parametrize("arguments", [["8501"], ["--server.port"], ["--server.port=1", "x", "y"]])
def test_options_that_are_none_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="Options come as --name value"):
        serve.options_of(arguments)


def test_options_keep_their_types() -> None:
    given = ["--server.port", "8502", "--server.headless=false", "--server.address", "0.0.0.0", "--a.b=c=d"]
    assert serve.options_of(given) == {
        "server.port": 8502,
        "server.headless": False,
        "server.address": "0.0.0.0",
        "a.b": "c=d",
    }
