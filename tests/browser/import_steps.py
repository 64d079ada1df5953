"""Importing a sensitivity table by hand."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect


def import_table(page: Page, file: Path) -> None:
    """Import ``file`` on the Runs page, which is open."""
    page.get_by_test_id("stPopover").get_by_role("button", name="Import").click()
    page.get_by_role("tab", name="Sensitivity CSV").click()
    uploader = page.get_by_test_id("stFileUploader").filter(has_text="Sensitivity CSV")  # there is another beside it
    uploader.locator("input[type=file]").set_input_files(file)
    expect(uploader.get_by_text(file.name)).to_be_visible()
    page.get_by_role("tabpanel").get_by_role("button", name="Import", exact=True).click()
