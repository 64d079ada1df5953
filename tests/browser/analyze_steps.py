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
    be_expert(page)
    open_block(page, "Compression")
    page.get_by_text("More options").click()


def be_expert(page: Page) -> None:
    """Turn the switch *Expert* on, which is kept for the person."""
    page.get_by_role("button", name="Help and account").click()
    switch = page.get_by_role("switch", name="Expert").or_(page.get_by_role("checkbox", name="Expert"))
    expect(switch).to_be_attached()
    if not switch.is_checked():
        page.get_by_text("Expert", exact=True).click()
        expect(switch).to_be_checked()
    page.keyboard.press("Escape")
