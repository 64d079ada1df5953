"""The table of the Runs page, by hand."""

from __future__ import annotations

from playwright.sync_api import Page, expect

_ROW_PIXELS = 35


def tick(page: Page, row: int) -> None:
    """Tick a row, counted from 1, once the table is there; each has its tick at the left, below the head."""
    table = page.get_by_test_id("stDataFrame")
    expect(table.locator("[role=gridcell]").first).to_be_attached()
    table.locator(".dvn-scroller").first.click(position={"x": 17, "y": _ROW_PIXELS * row + 17})
