"""Headers on every kind of answer, and what is not public; asked over the network from a running server."""

import re
import urllib.error
import urllib.request
from http.client import HTTPMessage

import pytest

from senseapp.app.common.notices import INLINE_SCRIPTS
from senseapp.compat.streamlit_internals import KNOWN_BASE
from tests.browser.conftest import METRICS_TOKEN
from tests.browser.servers import Server

pytestmark = pytest.mark.browser

ROUTES = [
    ("GET", "/", 200),
    ("GET", "/runs", 200),
    ("GET", "/results?run=0123", 200),
    ("GET", "/favicon.png", 200),
    ("GET", "/_stcore/health", 200),
    ("GET", "/_stcore/host-config", 200),
    ("GET", "/_stcore/metrics", 404),
    ("GET", "/some/base/_stcore/metrics", 404),
    ("GET", "/_stcore/agent/openapi.json", 404),
    ("GET", "/_stcore/upload_file/a/b", 200),  # the first page, as for any address that is none
    ("PUT", "/_stcore/upload_file/a/b", 403),
    ("DELETE", "/_stcore/upload_file/a/b", 403),
    ("OPTIONS", "/_stcore/upload_file/a/b", 204),
    ("GET", "/media/0123.png", 404),
    ("GET", "/download/" + "a" * 43, 404),
    ("GET", "/component/nothing.here/index.html", 404),
    ("GET", "/_stcore/bidi-components/nothing/index.js", 404),
    ("GET", "/static/js/nothing.js", 200),
    ("GET", "/%2e%2e/%2e%2e/etc/passwd", 400),
    ("GET", "//evil.example/", 400),
]
EXPECTED = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Show a redirection instead of following it."""

    def redirect_request(self, *arguments: object) -> None:
        return None


def ask(method: str, url: str, **headers: str) -> tuple[int, HTTPMessage, bytes]:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=20) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers, refused.read()


@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
def test_every_answer_has_the_headers(server: Server, method: str, path: str, status: int) -> None:
    found, headers, _ = ask(method, server.url + path)
    assert found == status
    assert {name: headers[name] for name in EXPECTED} == EXPECTED
    assert "camera=()" in headers["Permissions-Policy"]


def test_the_policy_names_where_each_thing_may_come_from(server: Server) -> None:
    _, headers, page = ask("GET", server.url)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == "'none'"
    assert "unsafe-inline" not in policy["script-src"]
    assert "'unsafe-eval'" not in policy["script-src"].split()
    assert not re.search(r"https?:|\*", " ".join(policy.values()))
    inline = re.findall(rb"<script(?![^>]*src)", page)
    assert policy["script-src"].count("sha256-") == len(inline) + len((KNOWN_BASE, *INLINE_SCRIPTS))


def test_a_script_file_has_its_type_and_the_headers(server: Server) -> None:
    _, _, page = ask("GET", server.url)
    (path,) = set(re.findall(rb'src="\.(/static/js/index[^"]+)"', page))
    status, headers, _ = ask("GET", server.url + path.decode())
    assert status == 200
    assert "javascript" in headers["Content-Type"]
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_metrics_need_the_token(server: Server) -> None:
    for token in ("", "Bearer ", "Bearer x", "Basic Og=="):
        status, _, body = ask("GET", f"{server.url}/_stcore/metrics", Authorization=token)
        assert status == 404
        assert b"active_sessions" not in body
    status, _, body = ask("GET", f"{server.url}/_stcore/metrics", Authorization=f"Bearer {METRICS_TOKEN}")
    assert status == 200
    assert b"active_sessions" in body
