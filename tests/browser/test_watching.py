"""A fresh server's first visitor; then a run, started by keyboard, found again, told of in title and notification."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.servers import SCRIPTED, Server, serving
from tests.browser.steps import RUN_MILLISECONDS, open_options
from tests.browser.test_journey import ask_for_many_levels
from tests.browser.waiting import at_rest, wait_until

pytestmark = pytest.mark.browser

DONE = re.compile(r"([1-9]\d*)(\.\d)?\s% · ")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose runs take minutes and no processor, 6 layers at 26 levels; nobody has opened its first page."""
    slow = {"SCRIPTED_SECONDS_PER_MEASUREMENT": "1"}
    with serving(Server(tmp_path_factory.mktemp("watched"), slow, command=SCRIPTED)) as started:
        yield started


@pytest.mark.wide
def test_the_first_visitor_of_a_fresh_server_may_come_by_a_link(visitor: Callable[[], Page], server: Server) -> None:
    page = visitor()
    page.goto(f"{server.url}/guide")
    sidebar = page.get_by_test_id("stSidebar")
    expect(sidebar.get_by_role("link", name="Schedule")).to_be_visible()
    expect(sidebar.get_by_role("link", name="app", exact=True)).to_have_count(0)
    sidebar.get_by_role("link", name="Analyze").click()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()


def done_so_far(page: Page) -> int:
    """Return the percent that the bar shows, once there is one."""
    text = page.get_by_text(DONE).first
    expect(text).to_be_visible(timeout=RUN_MILLISECONDS)
    found = DONE.search(text.inner_text())
    assert found is not None
    return int(found.group(1))


NOTIFICATIONS = """
window.shown = [];
window.Notification = class {
  constructor(title, options) { window.shown.push(title + ": " + options.body); }
  static permission = "granted";
  static requestPermission() {}
};
Object.defineProperty(document, "hidden", { get: () => true });
"""


def press_run_by_keyboard(page: Page) -> None:
    button = page.get_by_role("button", name="Run", exact=True)
    expect(button).to_be_visible()
    at_rest(page)
    for _ in range(60):
        page.keyboard.press("Tab")
        if button.evaluate("element => element === document.activeElement"):
            break
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()


@pytest.mark.wide
def test_a_run_started_by_keyboard_is_found_again_and_told_of_and_cancel_keeps_what_it_has(page: Page) -> None:
    page.add_init_script(NOTIFICATIONS)
    page.reload()
    open_options(page)
    ask_for_many_levels(page)
    press_run_by_keyboard(page)
    expect(page).to_have_title(re.compile(r"^\d+(\.\d)?\s% · Digits"))
    before = done_so_far(page)
    address = page.url
    page.reload()
    assert done_so_far(page) >= before
    assert page.url == address
    page.get_by_role("button", name="Help and account").click()
    page.get_by_role("link", name="Guide").click()
    expect(page.get_by_role("heading", name="What is sensitivity?")).to_be_visible()
    page.get_by_role("link", name="Results", exact=True).click()
    assert done_so_far(page) >= before
    expect(page).to_have_url(address)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    expect(page.get_by_text("Resume goes on where it stopped")).to_be_visible()
    expect(page.get_by_text("What does each layer lose")).to_be_visible()
    wait_until(page, "window.shown.length === 1")
    assert page.evaluate("window.shown[0]").startswith("Digits · zeros: Cancelled")


@pytest.mark.wide
def test_a_menu_that_covers_the_page_closes_with_the_next_page(page: Page, server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server.url)
    page.get_by_test_id("stExpandSidebarButton").click()
    menu = page.get_by_test_id("stSidebar")
    menu.get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    expect(menu).not_to_be_in_viewport()
