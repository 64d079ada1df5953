"""A real server with the real engine on a home of its own, and Chromium to drive it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from tests.serving import free_port, wait_for_health

ROOT = Path(__file__).parents[2]
ANSWER_MILLISECONDS = 60_000  # of a page on a machine that other tests keep busy
METRICS_TOKEN = "correct-horse"
CANDIDATES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "log.txt"


@pytest.fixture(scope="module")
def app_url(server_log: Path) -> Iterator[str]:
    """The address of a running app."""
    port = free_port()
    settings = {"SENSEAPP_HOME": str(server_log.parent / "home"), "SENSEAPP_METRICS_TOKEN": METRICS_TOKEN}
    environment = os.environ | settings
    command = [sys.executable, "-m", "senseapp.ui.serve", f"--server.port={port}", "--server.headless=true"]
    with server_log.open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    server_log.with_name("pid").write_text(str(server.pid))
    url = f"http://localhost:{port}"
    try:
        wait_for_health(url, server, server_log)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(timeout=15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """An installed Chrome or Chromium."""
    path = os.environ.get("CHROME") or next(filter(None, map(shutil.which, CANDIDATES)), None)
    assert path, "Browser tests need Chrome or Chromium: install Debian's package chromium, or set CHROME to its path."
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield launched
        launched.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    given = getattr(item, "funcargs", {})
    if report.failed and "server_log" in given:
        report.sections.append(("server log", given["server_log"].read_text()[-4000:]))
    if report.when == "call" and report.failed and "page" in given:
        with suppress(PlaywrightError):  # of a page that answers no more
            report.sections.append(("page", given["page"].locator("body").inner_text(timeout=5000)))
        report.sections.append(("what its scripts said", "\n".join(given["script_errors"])))
    return report


@pytest.fixture
def landing(app_url: str) -> str:
    """The address by which the visitor of ``page`` comes."""
    return app_url


@pytest.fixture
def script_errors() -> list[str]:
    """What the scripts of ``page`` complain about; shown where a test fails."""
    return []


@pytest.fixture
def page(browser: Browser, app_url: str, landing: str, server_log: Path, script_errors: list[str]) -> Iterator[Page]:
    """A page of a visitor who has just come; nothing may be fetched from anywhere but the app."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, accept_downloads=True)
    context.set_default_timeout(ANSWER_MILLISECONDS)
    expect.set_options(timeout=ANSWER_MILLISECONDS)
    foreign: list[str] = []
    opened = context.new_page()
    local = (app_url, app_url.replace("http", "ws"), "data:", "blob:")
    opened.on("request", lambda request: None if request.url.startswith(local) else foreign.append(request.url))
    opened.on("console", lambda said: foreign.append(said.text) if "Content Security Policy" in said.text else None)
    opened.on("console", lambda said: script_errors.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: script_errors.append(error.stack or error.message))
    opened.on("requestfailed", lambda request: script_errors.append(f"{request.url}: {request.failure}"))
    opened.on("crash", lambda _: script_errors.append("The browser ended this page."))
    opened.goto(landing)
    yield opened
    context.close()
    assert foreign == []
