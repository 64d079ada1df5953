"""Detection with COCO JSON, as a person goes it: an archive, a run, and what a layer changes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests import shapes_detector
from tests.browser.analyze_steps import open_block
from tests.browser.results_steps import section
from tests.browser.servers import Server, serving, with_source
from tests.pictures import write_zip

pytestmark = pytest.mark.browser

RUN_MILLISECONDS = 240_000
SOURCE = "shapes = tests.shapes_detector:SOURCE"
"""The network comes from another package; the task is senseapp's own."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a small trained detector."""
    with serving(with_source(tmp_path_factory.mktemp("detection"), SOURCE)) as started:
        yield started


@pytest.mark.wide
def test_boxes_from_an_archive_to_the_pictures_that_change(page: Page, tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "shapes.zip", shapes_detector.picture_files(24))
    open_block(page, "Model")
    page.get_by_text(shapes_detector.SOURCE.label, exact=True).click()
    page.get_by_role("combobox", name="What it does").click()
    page.get_by_role("option", name="Detection: boxes with a class").click()
    open_block(page, "Images")
    page.get_by_text("Upload images", exact=True).click()
    page.get_by_test_id("stFileUploader").filter(has_text="Images").locator("input[type=file]").set_input_files(archive)
    expect(page.get_by_text("24 images · with boxes")).to_be_visible()
    expect(page.get_by_text(re.compile(r"Uncompressed, mAP.* is \d+\.\d % over"))).to_be_visible()
    looked_at(page, "analyze")

    page.get_by_role("button", name="Run", exact=True).click()
    expect(section(page, "Layers")).to_be_visible(timeout=RUN_MILLISECONDS)
    looked_at(page, "results")
    page.locator("path[aria-roledescription=bar]").filter(visible=True).first.click(force=True)
    panel = page.locator(".st-key-layer_panel")
    page.get_by_text("75 %", exact=True).first.click()
    panel.get_by_role("button", name="Which answers change?").click()
    expect(panel.get_by_text(re.compile(r"Of \d+ objects, \d+ (is|are) lost or moved"))).to_be_visible(
        timeout=RUN_MILLISECONDS
    )
    expect(panel.get_by_text("Compressed", exact=True).first).to_be_visible()
    looked_at(page, "layer")


def looked_at(page: Page, name: str) -> None:
    """Keep a picture of the whole page where somebody wants to look at it."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"detection-{name}.png"), full_page=True)
