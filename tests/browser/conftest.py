"""One real server with the real engine and one Chromium for all browser tests; a test gets a visitor of its own."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.browser.servers import Server, serving
from tests.browser.waiting import APP, at_rest
from tests.pages.records import opener

ANSWER_MILLISECONDS = 120_000  # of a page on a machine that other tests keep busy
METRICS_TOKEN = "correct-horse"
CANDIDATES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The server that tests share, before its start."""
    return Server(tmp_path_factory.mktemp("shared"), {"SENSEAPP_METRICS_TOKEN": METRICS_TOKEN})


@pytest.fixture(scope="session")
def scripted_run(shared_home: Server) -> str:
    """A run of the demo with made-up measurements on the shared server; its layers are real, and so their histograms.

    It is made before the server starts, because only one process at a time may open a home.
    """
    backend = Backend(shared_home.home, open_session=opener(), workers=0, data_roots=())
    started = Service(backend).start(RunSpec())
    backend.runner.run_next()
    backend.close()
    return started


@pytest.fixture(scope="session")
def shared_server(shared_home: Server, scripted_run: str) -> Iterator[Server]:
    """A running app; the runs of all tests that share it are in its home."""
    with serving(shared_home):
        yield shared_home


@pytest.fixture
def server(shared_server: Server) -> Server:
    """The server of ``page``; a module that needs one in another environment has a fixture of this name."""
    return shared_server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """An installed Chrome or Chromium."""
    path = os.environ.get("CHROME") or next(filter(None, map(shutil.which, CANDIDATES)), None)
    assert path, "Browser tests need Chrome or Chromium: install Debian's package chromium, or set CHROME to its path."
    expect.set_options(timeout=ANSWER_MILLISECONDS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield launched
        launched.close()


@pytest.fixture(scope="session", autouse=True)
def _clicks_wait() -> Iterator[None]:
    """Let each click wait until the app's page is at rest: what is being made anew would not hear it."""
    click = Locator.click

    def rested_click(locator: Locator, **options: Any) -> None:
        locator.wait_for(state="attached")  # by then the page that it is on has come
        if locator.page.locator(APP).count():
            at_rest(locator.page)
        click(locator, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Locator, "click", rested_click)
        yield


def a_context(browser: Browser) -> BrowserContext:
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, accept_downloads=True)
    context.set_default_timeout(ANSWER_MILLISECONDS)
    return context


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Callable[[], Page]]:
    """Each call is somebody who has just come with a browser of their own, and opened nothing yet."""
    contexts: list[BrowserContext] = []

    def comes() -> Page:
        contexts.append(a_context(browser))
        return contexts[-1].new_page()

    yield comes
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def context_with_scripts(browser: Browser) -> BrowserContext:
    """A browser that keeps the app's scripts from page to page: to load them anew takes half a second."""
    return a_context(browser)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    given = getattr(item, "funcargs", {})
    if report.failed and "server" in given:
        report.sections.append(("server log", given["server"].log.read_text()[-4000:]))
    if report.when == "call" and report.failed and "page" in given:
        with suppress(PlaywrightError):  # of a page that answers no more
            report.sections.append(("page", given["page"].locator("body").inner_text(timeout=5000)))
        report.sections.append(("what its scripts said", "\n".join(given["script_errors"])))
    return report


@pytest.fixture
def landing(server: Server) -> str:
    """The address by which the visitor of ``page`` comes."""
    return server.url


@pytest.fixture
def script_errors() -> list[str]:
    """What the scripts of ``page`` complain about; shown where a test fails."""
    return []


def complaint_of(said: ConsoleMessage) -> list[str]:
    """Return a line of the console, with what it is about, if it is an error or a warning of Vega's on a chart."""
    is_complaint = said.type == "error" or said.text.startswith("WARN")
    return [f"{said.text} ({said.location.get('url', '')})"] if is_complaint else []


def failure_of(request: Request) -> list[str]:
    """Return why a request failed; nothing where its page was left before the answer."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.url}: {request.failure}"]


@pytest.fixture
def page(
    context_with_scripts: BrowserContext, server: Server, landing: str, script_errors: list[str]
) -> Iterator[Page]:
    """A page of a visitor who has just come; nothing may be fetched from anywhere but the app."""
    foreign: list[str] = []
    context_with_scripts.clear_cookies()
    opened = context_with_scripts.new_page()
    local = (server.url, server.url.replace("http", "ws"), "data:", "blob:")
    opened.on("request", lambda request: None if request.url.startswith(local) else foreign.append(request.url))
    opened.on("console", lambda said: foreign.append(said.text) if "Content Security Policy" in said.text else None)
    opened.on("console", lambda said: script_errors.extend(complaint_of(said)))
    opened.on("pageerror", lambda error: script_errors.append(error.stack or error.message))
    opened.on("requestfailed", lambda request: script_errors.extend(failure_of(request)))
    opened.on("crash", lambda _: script_errors.append("The browser ended this page."))
    opened.goto(landing)
    yield opened
    opened.close()
    assert foreign == []
