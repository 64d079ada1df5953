"""Foreign origins and ended logins are kept out."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from senseapp.app import logins
from senseapp.app.logins import Logouts
from senseapp.app.server import guards
from senseapp.app.server.guards import EndedLogins, SameOrigin, is_own_origin


async def connected(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("welcome")


def test_a_page_of_another_port_may_not_connect() -> None:
    app = Starlette(routes=[WebSocketRoute("/stream", connected)], middleware=[Middleware(SameOrigin)])
    client = TestClient(app, base_url="http://localhost:8501")
    for origin in ("http://localhost:8501", ""):
        headers = {"host": "localhost:8501"} | ({"origin": origin} if origin else {})
        with client.websocket_connect("/stream", headers=headers) as socket:
            assert socket.receive_text() == "welcome"
    for origin in ("http://localhost:8502", "http://localhost", "https://evil.example", "null", "http://localhost:x"):
        headers = {"host": "localhost:8501", "origin": origin}
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/stream", headers=headers):
            pass


def test_configured_names_and_origins_may_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "server_address", lambda: "app.example.org")
    monkeypatch.setattr(guards, "allowed_origins", lambda: ("https://other.example:444",))
    origins = ("https://app.example.org", "https://app.example.org:443", "https://other.example:444")
    assert all(is_own_origin(origin, "127.0.0.1:8501") for origin in origins)
    foreign = ("https://app.example.org:444", "http://app.example.org:443", "https://other.example", "https://x.org")
    assert not any(is_own_origin(origin, "127.0.0.1:8501") for origin in foreign)


@pytest.fixture
def payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cookies whose signature is their first letter."""
    monkeypatch.setattr(
        logins, "login_payload", lambda cookies: cookies.get("_streamlit_user", "").removeprefix("s").encode()
    )


@pytest.mark.usefixtures("payloads")
def test_a_logout_is_kept_as_long_as_the_cookie_lives(tmp_path: Path) -> None:
    seconds = [0.0]
    path = tmp_path / "logouts.json"
    ann, bob = {"_streamlit_user": "sann"}, {"_streamlit_user": "sbob"}
    before = Logouts(path, lambda: seconds[0])
    assert not before.covers(ann)
    before.end(ann)
    before.end({})
    after = Logouts(path, lambda: seconds[0])  # a restart
    assert [(each.covers(ann), each.covers(bob), each.covers({})) for each in (before, after)] == [
        (True, False, False)
    ] * 2
    assert "ann" not in path.read_text()
    seconds[0] = 32 * 86_400
    after.end(bob)
    assert not after.covers(ann)


@pytest.mark.usefixtures("payloads")
def test_a_damaged_list_and_a_full_disk_do_not_stop_the_server(tmp_path: Path) -> None:
    path = tmp_path / "logouts.json"
    path.write_text("[1, 2")
    assert not Logouts(path).covers({"_streamlit_user": "sann"})
    nowhere = Logouts(tmp_path / "none" / "logouts.json")
    nowhere.end({"_streamlit_user": "sann"})
    assert nowhere.covers({"_streamlit_user": "sann"})


@pytest.mark.usefixtures("payloads")
def test_a_cookie_from_before_the_logout_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Logouts(tmp_path / "logouts.json")
    monkeypatch.setattr(guards, "logouts", lambda: kept)

    def cookies_seen(request: Request) -> PlainTextResponse:
        return PlainTextResponse(" ".join(sorted(request.cookies)))

    app = Starlette(routes=[Route("/{path:path}", cookies_seen)], middleware=[Middleware(EndedLogins)])
    client = TestClient(app)
    cookie = {"cookie": "_streamlit_user=sann; _streamlit_user_1=more; _streamlit_user_tokens=t; _streamlit_xsrf=x"}
    everything = "_streamlit_user _streamlit_user_1 _streamlit_user_tokens _streamlit_xsrf"

    def seen(path: str) -> str:
        answer: httpx.Response = client.get(path, headers=cookie)
        return answer.text

    assert seen("/runs") == everything
    assert seen("/base/auth/logout") == everything
    assert seen("/runs") == "_streamlit_xsrf"
    assert seen("/auth/logout") == "_streamlit_xsrf"
