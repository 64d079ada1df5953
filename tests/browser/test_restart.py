"""A server that dies in the middle of a run, and then one that is asked to end."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.servers import Server, serving

pytestmark = pytest.mark.browser

STOP_SECONDS = 5
RUN_MILLISECONDS = 240_000
MANY_LEVELS = ", ".join(map(str, range(10, 100, 20)))  # long enough to be killed twice
TOTAL = 23 * 7  # with the two that are chosen already


def open_app(browser: Browser, server: Server) -> Page:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    page = context.new_page()
    page.goto(server.url)
    return page


def states(server: Server) -> list[str]:
    with sqlite3.connect(server.home / "senseapp.sqlite3") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [state for (state,) in database.execute("SELECT state FROM runs ORDER BY sequence")]


def stored(server: Server) -> int:
    """Return how many whole measurements of the only run are on the disk."""
    return sum(journal.read_bytes().count(b"\n") for journal in server.home.glob("runs/*/measurements.jsonl"))


def wait_for_measurements(server: Server, *, more_than: int = 0) -> int:
    """Wait on the disk: a browser on a busy machine may see the first measurement only once all are done."""
    deadline = time.monotonic() + RUN_MILLISECONDS / 1000
    while (found := stored(server)) <= more_than:
        assert time.monotonic() < deadline, "nothing was measured"
        time.sleep(0.01)
    return found


def test_a_run_survives_a_killed_server_and_one_that_is_asked_to_end(browser: Browser, tmp_path: Path) -> None:
    with serving(Server(tmp_path)) as server:
        page = open_app(browser, server)
        page.get_by_text("More options").click()
        page.get_by_role("textbox", name="Other levels").fill(MANY_LEVELS)
        page.get_by_role("textbox", name="Other levels").press("Tab")
        expect(page.get_by_text("23 layers × 7 levels")).to_be_visible()
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.get_by_role("button", name="Cancel")).to_be_visible()
        address = page.url
        killed_at = wait_for_measurements(server)
        server.kill()
        assert stored(server) >= killed_at

        server.start()
        resume(page, address, server)
        before = wait_for_measurements(server, more_than=stored(server))
        server.terminate(STOP_SECONDS)
        assert before <= stored(server) < TOTAL

        server.start()
        resume(page, address, server)
        expect(page.get_by_role("tab", name="Heat map")).to_be_visible(timeout=RUN_MILLISECONDS)
        assert states(server) == ["done"]
        assert stored(server) == TOTAL
        page.context.close()


def resume(page: Page, address: str, server: Server) -> None:
    page.goto(address)
    expect(page.get_by_text("Everything measured so far is kept")).to_be_visible()
    assert states(server) == ["interrupted"]
    page.get_by_role("button", name="Resume").click()
