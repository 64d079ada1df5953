"""The folded sections of the Results page, by hand."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.browser.waiting import at_rest


def section(page: Page, name: str) -> Locator:
    """Return the head of a section, which is there once a run has finished."""
    return page.get_by_test_id("stExpander").locator("summary").filter(has_text=name)


def open_section(page: Page, name: str) -> None:
    """Unfold a section, once the page has run."""
    at_rest(page)
    section(page, name).click()
    expect(page.locator("details[open] > summary").filter(has_text=name)).to_be_visible()


def make_schedule(page: Page) -> None:
    """Go to the Schedule page of the run."""
    open_section(page, "Schedule")
    page.get_by_role("link", name="Make a schedule").click()
