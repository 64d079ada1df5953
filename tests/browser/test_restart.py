"""A server that is killed in the middle of a run, and one that is asked to end."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.servers import Server, serving
from tests.browser.test_journey import start

pytestmark = [pytest.mark.browser, pytest.mark.wide]

STOP_SECONDS = 5
RUN_MILLISECONDS = 240_000
TOTAL = 23 * 26  # long enough to be killed twice


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module alone: it may die."""
    with serving(Server(tmp_path_factory.mktemp("restarted"))) as started:
        yield started


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


def test_a_run_survives_a_killed_server_and_one_that_is_asked_to_end(
    visitor: Callable[[], Page], server: Server
) -> None:
    page = visitor()
    page.goto(server.url)
    start(page, images="128", many_levels=True)
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
    expect(page.get_by_text(re.compile("Finished$"))).to_be_visible(timeout=RUN_MILLISECONDS)
    assert states(server) == ["done"]
    assert stored(server) == TOTAL


def resume(page: Page, address: str, server: Server) -> None:
    page.goto(address)
    expect(page.get_by_text("Everything measured so far is kept")).to_be_visible()
    assert states(server) == ["interrupted"]
    page.get_by_role("button", name="Resume").click()
