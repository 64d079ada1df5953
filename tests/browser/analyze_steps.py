"""The blocks of the Analyze page, by hand."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.waiting import at_rest


def open_block(page: Page, title: str) -> None:
    """Show the fields of the block of this title, such as ``Images``."""
    at_rest(page)
    page.locator(f".st-key-block-{title.lower()}-open").get_by_role("button", name="Change").click()
    expect(page.locator(f".st-key-block_{title.lower()}_open")).to_be_visible()


def open_options(page: Page) -> None:
    """Ask for targets, and unfold everything that can be set about the measurement."""
    at_rest(page)
    page.get_by_text("Targets for a training tool", exact=True).click()
    open_block(page, "Compression")
    page.get_by_text("More options").click()
