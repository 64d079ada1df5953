"""Foreign origins and ended logins are kept out."""

from itertools import product
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from senseapp.app import logins
from senseapp.app.logins import Logouts
from senseapp.app.server import guards
from senseapp.app.server.guards import EndedLogins, KnownSites, configured_hosts, is_own_origin
from senseapp.core.errors import InvalidSpec
from soak.strangers import FOREIGN_HOSTS, FOREIGN_ORIGINS
from tests.asynchronous import run_async

OWN = ("localhost:8501", "127.0.0.1:8501", "127.0.0.1", "LOCALHOST", "[::1]:8501", "localhost:9000")


async def welcome(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every request, and take every connection."""
    if scope["type"] == "http":
        await PlainTextResponse("welcome")(scope, receive, send)
    else:
        await send({"type": "websocket.accept"})


def status_of(method: str, headers: list[tuple[str, str]], address: str = "") -> int:
    """Return how the server answers a request with these headers; of connections 101, or 403 where it refuses."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect" if method == "connect" else "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    kind = {"type": "websocket"} if method == "connect" else {"type": "http", "method": method}
    raw = [(name.encode(), value.encode()) for name, value in headers]
    run_async(KnownSites(welcome)({**kind, "path": "/runs", "headers": raw, "server": (address, 8501)}, receive, send))
    return {"websocket.accept": 101, "websocket.close": 403}.get(sent[0]["type"], 0) or int(sent[0]["status"])


METHODS = ("GET", "POST", "DELETE", "connect")


def test_own_names_are_answered() -> None:
    for host in OWN:
        for origin in ([], [("origin", f"http://{host}")], [("origin", f"https://{host}")]):
            assert {status_of(method, [("host", host), *origin]) for method in METHODS} == {101, 200}, host


def test_foreign_hosts_and_origins_are_refused() -> None:
    for host in FOREIGN_HOSTS:
        for origin in ([], [("origin", f"http://{host}")] if host.isprintable() else []):
            found = [status_of(method, [("host", host), *origin]) for method in METHODS]
            assert found == [400, 400, 400, 403], host
    for origin in FOREIGN_ORIGINS:
        found = [status_of(method, [("host", "localhost:8501"), ("origin", origin)]) for method in METHODS]
        assert found == [403] * 4, origin
    twice = [("host", "localhost:8501"), ("host", "localhost:8501")]
    assert status_of("GET", twice) == 400
    assert status_of("GET", [*twice[:1], ("origin", "http://localhost:8501"), ("origin", "http://x")]) == 403


def test_documented_deployments_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies that pass the name on or do not, a container with a published port, a Space, a name of the network."""
    monkeypatch.setattr(guards, "server_address", lambda: "app.example.org")
    for host, origin in (
        ("app.example.org", "https://app.example.org"),
        ("127.0.0.1:8501", "https://app.example.org"),
        ("localhost:8501", "http://localhost:8501"),
    ):
        assert status_of("connect", [("host", host), ("origin", origin)]) == 101
    monkeypatch.setattr(guards, "server_address", lambda: "")
    monkeypatch.setattr(guards, "listening_address", lambda: "192.168.1.7")
    assert status_of("GET", [("host", "192.168.1.7:8501")]) == 200
    monkeypatch.setattr(guards, "listening_address", lambda: "0.0.0.0")
    assert status_of("GET", [("host", "0.0.0.0:8501")]) == 400
    monkeypatch.setenv("SENSEAPP_HOSTS", "Measure.example.org, *.lab.example 10.0.0.5")
    known = ("measure.example.org", "a.lab.example:8501", "b.a.lab.example", "10.0.0.5", "localhost")
    assert {status_of("GET", [("host", host)]) for host in known} == {200}
    unknown = ("example.org", "lab.example", "lab.example.evil.example", "evilab.example", "10.0.0.50")
    assert {status_of("GET", [("host", host)]) for host in unknown} == {400}


def test_the_address_that_a_request_came_to_is_known() -> None:
    assert status_of("GET", [("host", "10.1.2.3:8501")], "10.1.2.3") == 200
    assert status_of("GET", [("host", "[fe80::1]:8501")], "fe80::1") == 200
    assert status_of("GET", [("host", "10.1.2.4:8501")], "10.1.2.3") == 400


@pytest.mark.parametrize("names", ["https://app.example.org", "app.example.org:8501", "*", "a b/c", "app..org"])
def test_a_list_that_names_no_hosts_is_refused(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENSEAPP_HOSTS", names)
    with pytest.raises(InvalidSpec, match="SENSEAPP_HOSTS lists names"):
        configured_hosts()


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

    client = TestClient(Starlette(routes=[Route("/{path:path}", cookies_seen)], middleware=[Middleware(EndedLogins)]))
    cookie = {"cookie": "_streamlit_user=sann; _streamlit_user_1=more; _streamlit_user_tokens=t; _streamlit_xsrf=x"}
    everything = "_streamlit_user _streamlit_user_1 _streamlit_user_tokens _streamlit_xsrf"

    def seen(path: str) -> str:
        answer: httpx.Response = client.get(path, headers=cookie)
        return answer.text

    for method, path in product(("GET", "HEAD", "POST", "OPTIONS", "PUT"), ("/auth/logout", "/b/auth%2Flogout?a=1")):
        refused = client.request(
            method, path, headers=cookie | {"referer": "http://evil.example/", "accept": "image/*"}
        )
        assert (refused.status_code, refused.headers.get("set-cookie")) == (403, None)
        assert method == "HEAD" or refused.text.startswith("This address logs nobody out")
    assert seen("/runs") == everything
    kept.end({"_streamlit_user": "sann"})
    assert seen("/runs") == "_streamlit_xsrf"
    assert seen("/base/auth/logout") == everything  # Streamlit clears the cookie then, and tells the provider
