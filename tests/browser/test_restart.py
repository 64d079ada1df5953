"""A server that is asked to end in the middle of a run: it is gone at once, and nothing that was measured is lost."""

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.servers import Server, serving
from tests.browser.steps import RUN_MILLISECONDS, offer_images, open_block, open_options
from tests.browser.test_journey import ask_for_many_levels, fill
from tests.browser.waiting import at_rest
from tests.pictures import png, write_zip

pytestmark = [pytest.mark.browser, pytest.mark.wide]

STOP_SECONDS = 5
TOTAL = 23 * 26


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module alone: it ends."""
    with serving(Server(tmp_path_factory.mktemp("restarted"))) as started:
        yield started


def states(server: Server) -> list[str]:
    with sqlite3.connect(server.home / "senseapp.sqlite3") as database:
        return [state for (state,) in database.execute("SELECT state FROM runs ORDER BY sequence")]


def stored(server: Server) -> int:
    """Return how many whole measurements of the only run are on the disk."""
    return sum(journal.read_bytes().count(b"\n") for journal in server.home.glob("runs/*/measurements.jsonl"))


def test_a_run_survives_a_server_that_is_asked_to_end(visitor: Callable[[], Page], server: Server) -> None:
    page = visitor()
    page.goto(server.url)
    open_options(page)
    fill(page.get_by_role("spinbutton", name="Images to measure on"), "128")
    ask_for_many_levels(page)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page).to_have_url(re.compile(r"/results\?run=[0-9a-f]{32}$"))
    address, deadline = page.url, time.monotonic() + RUN_MILLISECONDS / 1000
    while not (before := stored(server)):
        assert time.monotonic() < deadline, "nothing was measured"
        time.sleep(0.01)
    server.terminate(STOP_SECONDS)
    assert before <= stored(server) < TOTAL

    server.start()
    page.goto(address)
    expect(page.get_by_text("Everything measured so far is kept")).to_be_visible()
    assert states(server) == ["interrupted"]
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text(re.compile("Finished$"))).to_be_visible(timeout=RUN_MILLISECONDS)
    assert states(server) == ["done"]
    assert stored(server) == TOTAL


def test_a_page_that_connects_again_starts_what_it_shows(
    visitor: Callable[[], Page], server: Server, tmp_path: Path
) -> None:
    page = visitor()
    page.goto(server.url)
    open_block(page, "Model")
    page.locator(".st-key-block_model_open").get_by_text("Detector", exact=True).click()
    expect(page.get_by_text("Demo: a small detector")).to_be_visible()
    page.get_by_text("Targets for a training tool", exact=True).click()
    offer_images(page, write_zip(tmp_path / "mine.zip", {f"{number}.png": png(number) for number in range(24)}))
    expect(page.get_by_text("mine.zip, 24 images")).to_be_visible()
    expect(page.get_by_text("on all images, measured:")).to_be_visible()
    at_rest(page)
    address = page.url
    server.kill()
    server.start()
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-connection-state", "CONNECTED")
    started = re.compile(r"/results\?run=[0-9a-f]{32}$")
    page.get_by_role("button", name="Run", exact=True).click()
    with suppress(AssertionError):  # nothing starts where this press is the first that the new server hears of the page
        expect(page).to_have_url(started, timeout=20_000)
    if page.url == address:
        expect(page.get_by_text("mine.zip, 24 images")).to_be_visible()
        page.get_by_role("button", name="Run", exact=True).click()
    expect(page).to_have_url(started)
    with sqlite3.connect(server.home / "senseapp.sqlite3") as database:
        *_, (spec,) = database.execute("SELECT spec FROM runs ORDER BY sequence")
    assert all(part in spec for part in ("mine.zip", '"targets"', "shapes_detector"))
