"""Boxes and masks, as a person goes: an archive, a run, what a layer changes, and why."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import pytest
from playwright.sync_api import Page, expect

from tests import shapes_detector, toy_rectangles
from tests.browser.servers import Server, serving, with_sources
from tests.browser.steps import RUN_MILLISECONDS, looked_at, offer_images, open_block, open_section, section
from tests.pictures import write_zip

pytestmark = [pytest.mark.browser, pytest.mark.wide]

SOURCES = ("shapes = tests.shapes_detector:SOURCE", "toy_segmenters = tests.toy_rectangles:SOURCE")
"""The networks come from another package; the tasks are senseapp's own."""


@dataclass(frozen=True, kw_only=True)
class Annotated:
    """A network with pictures, and what pages say of them."""

    network: ModuleType
    task: str
    annotations: str
    figure: str
    changed: str


DETECTION = Annotated(
    network=shapes_detector,
    task="Detection: boxes with a class",
    annotations="boxes",
    figure=r"Detection score is \d+\.\d % over",
    changed=r"Of \d+ objects, \d+ (is|are) lost or moved",
)
SEGMENTATION = Annotated(
    network=toy_rectangles,
    task="Segmentation: one class per pixel",
    annotations="masks",
    figure=r"(Right pixels|Mean IoU) is \d+\.\d % over",
    changed=r"Of 100 pixels, .* keep their class",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a small detector and a small network that finds red and green."""
    with serving(with_sources(tmp_path_factory.mktemp("annotated"), *SOURCES)) as started:
        yield started


@pytest.mark.parametrize("case", [DETECTION, SEGMENTATION], ids=["detection", "segmentation"])
def test_from_an_archive_to_the_pictures_that_change(page: Page, case: Annotated, tmp_path) -> None:
    open_block(page, "Model")
    page.get_by_text(case.network.SOURCE.label, exact=True).click()
    page.get_by_role("combobox", name="What it does").click()
    page.get_by_role("option", name=case.task).click()
    offer_images(page, write_zip(tmp_path / "shapes.zip", case.network.picture_files(24)))
    expect(page.get_by_text(f"24 images · with {case.annotations}")).to_be_visible()
    expect(page.get_by_text(re.compile(f"Uncompressed, {case.figure}"))).to_be_visible()
    labelled = page.locator(".st-key-block_what-we-understood_open").get_by_text("As labelled", exact=True).first
    expect(labelled).to_be_visible()
    looked_at(page, f"{case.annotations}-analyze", labelled)

    page.get_by_role("button", name="Run", exact=True).click()
    expect(section(page, "Layers")).to_be_visible(timeout=RUN_MILLISECONDS)
    open_section(page, "Layers")
    expect(page.get_by_role("tab", name="Curves")).to_be_visible()  # the chart above has gone
    page.locator("path[aria-roledescription=bar]").filter(visible=True).first.click(force=True)
    panel = page.locator(".st-key-layer_panel")
    panel.get_by_role("button", name="Which answers change?").click()
    expect(panel.get_by_text(re.compile(case.changed))).to_be_visible(timeout=RUN_MILLISECONDS)
    expect(panel.get_by_text("Compressed", exact=True).first).to_be_visible()
    looked_at(page, f"{case.annotations}-changes", panel.get_by_text("Compressed", exact=True).first)
    if case is SEGMENTATION:
        expect(panel.get_by_text("Drop of IoU with the masks in 3 classes")).to_be_visible()
        panel.get_by_role("button", name="Why this layer?").click()
        why = panel.get_by_role("heading", name=re.compile(r"Why this layer at \d bits\?"))
        expect(why).to_be_visible(timeout=RUN_MILLISECONDS)
        expect(panel.get_by_text("Its share of what all layers lose alone")).to_be_visible()
