"""Segmentation with masks, as a person goes it: an archive, a run, a layer's changes, and a proof."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests import toy_segmentation
from tests.browser.analyze_steps import open_block
from tests.browser.results_steps import section
from tests.browser.servers import Server, serving, with_source
from tests.pictures import write_zip

pytestmark = pytest.mark.browser

RUN_MILLISECONDS = 240_000
SOURCE = "toy_segmenters = tests.toy_segmentation:SOURCE"
"""The network comes from another package; the task is senseapp's own."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a small network that finds red and green."""
    with serving(with_source(tmp_path_factory.mktemp("segmentation"), SOURCE)) as started:
        yield started


@pytest.mark.wide
def test_masks_from_an_archive_to_the_pictures_that_change(page: Page, tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "shapes.zip", toy_segmentation.picture_files(24))
    open_block(page, "Model")
    page.get_by_text(toy_segmentation.SOURCE.label, exact=True).click()
    page.get_by_role("combobox", name="What it does").click()
    page.get_by_role("option", name="Segmentation: one class per pixel").click()
    open_block(page, "Images")
    page.get_by_text("Upload images", exact=True).click()
    page.get_by_test_id("stFileUploader").filter(has_text="Images").locator("input[type=file]").set_input_files(archive)
    expect(page.get_by_text("24 images · with masks")).to_be_visible()
    expect(page.get_by_text(re.compile(r"Uncompressed, Mean IoU is \d+\.\d % over"))).to_be_visible()
    block = page.locator(".st-key-block_what-we-understood_open")
    expect(block.get_by_text("As labelled", exact=True).first).to_be_visible()
    looked_at(page, "analyze", block.get_by_text("As labelled", exact=True).first)

    page.get_by_role("button", name="Run", exact=True).click()
    expect(section(page, "Layers")).to_be_visible(timeout=RUN_MILLISECONDS)
    looked_at(page, "results", section(page, "Layers"))
    page.locator("path[aria-roledescription=bar]").filter(visible=True).first.click(force=True)
    panel = page.locator(".st-key-layer_panel")
    page.get_by_text("75 %", exact=True).first.click()
    panel.get_by_role("button", name="Which answers change?").click()
    expect(panel.get_by_text(re.compile(r"Of 100 pixels, .* keep their class"))).to_be_visible(timeout=RUN_MILLISECONDS)
    expect(panel.get_by_text("Compressed", exact=True).first).to_be_visible()
    expect(panel.get_by_text("Drop of IoU with the masks in 3 classes")).to_be_visible()
    looked_at(page, "changes", panel.get_by_text("Compressed", exact=True).first)
    panel.get_by_role("button", name="Why this layer?").click()
    expect(panel.get_by_role("heading", name="Why this layer at 75 %?")).to_be_visible(timeout=RUN_MILLISECONDS)
    expect(panel.get_by_text("Its share of what all layers lose alone")).to_be_visible()


def looked_at(page: Page, name: str, shown: Locator) -> None:
    """Keep a picture of the page with ``shown`` in sight where somebody wants to look at it."""
    if folder := os.environ.get("SCREENSHOTS"):
        shown.scroll_into_view_if_needed()
        page.screenshot(path=str(Path(folder) / f"segmentation-{name}.png"))
