"""The app inside a page of another origin, as a Space of Hugging Face shows it."""

import re
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Page, expect

from tests.browser.servers import SCRIPTED, Server, serving
from tests.pages.records import profile

pytestmark = pytest.mark.browser

DOCKERFILE = (Path(__file__).parents[2] / "deploy" / "space" / "Dockerfile").read_text()


class Outer(BaseHTTPRequestHandler):
    """Answers with a page that shows the address after its ``/?`` in a frame."""

    def do_GET(self) -> None:
        page = f'<!doctype html><iframe src="{self.path[2:]}" width="1200" height="900"></iframe>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def outer() -> Iterator[str]:
    """The origin of a page with a frame; ``127.0.0.1`` is another site than ``localhost``."""
    web = ThreadingHTTPServer(("127.0.0.1", 0), Outer)
    Thread(target=web.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()


@pytest.fixture(scope="module")
def framed(outer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the settings of the Space, whose frame is ours."""
    settings = dict(re.findall(r"(STREAMLIT_SERVER_\w+)=(\S+)", DOCKERFILE)) | {"SENSEAPP_FRAME_ANCESTORS": outer}
    with serving(Server(tmp_path_factory.mktemp("framed"), settings, command=SCRIPTED)) as server:
        yield server


@pytest.mark.wide
def test_a_page_of_a_named_origin_shows_the_app(framed: Server, outer: str, visitor: Callable[[], Page]) -> None:
    with urllib.request.urlopen(f"{framed.url}/_stcore/health", timeout=20) as answer:
        cookie = answer.headers["Set-Cookie"].lower()
    assert "samesite=none" in cookie
    assert "secure" in cookie
    page = visitor()
    page.goto(f"{outer}/?{framed.url}/")
    inside = page.frame_locator("iframe")
    expect(inside.get_by_role("heading", name="What do you need?")).to_be_visible()
    expect(inside.get_by_text(f"{len(profile().layers)} layers").first).to_be_visible()
