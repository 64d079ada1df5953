"""An export that does not say how it is read, with pictures without labels: asked on pictures, answered by a click."""

import re
from pathlib import Path

import onnx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.steps import (
    AMOUNTS,
    RUN_MILLISECONDS,
    looked_at,
    make_schedule,
    offer_graph,
    offer_images,
    open_part,
    open_section,
    run_to_results,
    verify,
)
from tests.browser.test_look import does_not_scroll_sideways, too_faint
from tests.browser.waiting import at_rest
from tests.detector_exports import exported_detector, shape_pictures
from tests.pictures import write_zip

pytestmark = pytest.mark.browser

UNKNOWN = re.compile("It is not known how images of export.onnx are read")
CARD = ".st-key-block_what-we-understood_open"


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_one_click_corrects_what_was_only_assumed_and_the_file_follows(page: Page, tmp_path: Path) -> None:
    pictures = shape_pictures(tmp_path / "set", 40, labelled=False) / "images"
    offer_graph(page, exported_detector(tmp_path / "export.onnx", "columns", high=255.0))
    page.get_by_role("combobox", name="What it does").click()
    page.get_by_role("option", name="Detection: boxes with a class").click()
    offer_images(page, write_zip(tmp_path / "set.zip", {each.name: each.read_bytes() for each in pictures.iterdir()}))
    card = page.locator(CARD)
    expect(card.get_by_text("32 images without labels do not decide")).to_be_visible()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    expect(page.get_by_text(UNKNOWN)).to_have_count(2)  # in the card, and beside the button
    readings = card.locator("[class*='st-key-reading_asked_']")
    expect(readings).to_have_count(4)
    expect(readings.get_by_test_id("stImage")).to_have_count(16)
    assert too_faint(page) == []
    looked_at(page, "understood-asked")
    does_not_scroll_sideways(page, 390, 1280)

    readings.filter(has_text="values from 0 to 255").get_by_role("button", name="Use this").last.click()
    expect(card.get_by_text("values from 0 to 255, RGB, stretch · chosen by a person")).to_be_visible()
    expect(card.get_by_test_id("stImage")).to_have_count(4)
    at_rest(page)
    assert too_faint(page) == []
    looked_at(page, "understood-chosen")
    does_not_scroll_sideways(page, 390, 1280)
    run_to_results(page)
    open_section(page, "Details")
    page.get_by_role("button", name="What we understood").click()
    expect(page.get_by_text("values from 0 to 255, RGB, stretch (chosen by a person)")).to_be_visible()
    looked_at(page, "understood-results")
    page.keyboard.press("Escape")

    make_schedule(page)
    expect(page.get_by_text(AMOUNTS)).to_be_visible()
    verify(page)
    open_part(page, "File that runs")
    page.get_by_text("All 8-bit", exact=True).click()
    at_rest(page)
    page.get_by_role("button", name=re.compile("^Make (the file|another)")).click()
    button = page.get_by_role("button", name=re.compile(r"^Get the .*\.onnx"))
    expect(button.first).to_be_visible(timeout=RUN_MILLISECONDS)
    with page.expect_download() as download:
        button.first.click()
    file = tmp_path / "int8.onnx"
    download.value.save_as(file)
    model = onnx.load(file)
    onnx.checker.check_model(model, full_check=True)
    assert any(each.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8) for each in model.graph.initializer)
