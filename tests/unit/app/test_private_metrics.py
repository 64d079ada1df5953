"""Who may read Streamlit's metrics."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from senseapp.app.server.guards import PrivateMetrics
from senseapp.app.server.serve import options_of
from tests.asynchronous import run_async


def status(path: str, authorization: str = "") -> int:
    def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("numbers")

    app = Starlette(routes=[Route("/{path:path}", answer)], middleware=[Middleware(PrivateMetrics)])

    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.get(path, headers={"Authorization": authorization})).status_code

    return run_async(ask())


@pytest.mark.parametrize("path", ["/_stcore/metrics", "/base/_stcore/metrics", "/_stcore/metrics/", "/_stcore/agent/x"])
def test_metrics_are_hidden_without_the_token(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.delenv("SENSEAPP_METRICS_TOKEN", raising=False)
    assert [status(path, sent) for sent in ("", "Bearer ", "Bearer None")] == [404, 404, 404]
    monkeypatch.setenv("SENSEAPP_METRICS_TOKEN", "correct-horse")
    assert [status(path, sent) for sent in ("", "Bearer wrong", "correct-horse2")] == [404, 404, 404]
    assert status(path, "Bearer correct-horse") == 200


def test_the_health_check_is_open() -> None:
    assert status("/_stcore/health") == 200


@pytest.mark.parametrize("arguments", [["8501"], ["--server.port"], ["--server.port=1", "x", "y"]])
def test_options_that_are_none_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="Options come as --name value"):
        options_of(arguments)


def test_options_keep_their_types() -> None:
    given = ["--server.port", "8502", "--server.headless=false", "--server.address", "0.0.0.0", "--a.b=c=d"]
    assert options_of(given) == {
        "server.port": 8502,
        "server.headless": False,
        "server.address": "0.0.0.0",
        "a.b": "c=d",
    }
