"""The whole way as a person goes it, with the demo and the real engine."""

import json
import re
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

from senseapp.formats.plain import read_schedule
from senseapp.networks.profile import profile_model
from senseapp.networks.sources.demo import build_demo_network
from senseapp.records.schedule import ResourceBudget
from tests.browser.steps import (
    AMOUNTS,
    RUN_MILLISECONDS,
    click_a_dot,
    lock_the_first_layer,
    make_schedule,
    move_the_target,
    open_options,
    open_part,
    open_section,
    section,
    take_everything,
    verify,
)
from tests.browser.waiting import at_rest, wait_until

pytestmark = pytest.mark.browser


MANY_LEVELS = ", ".join(str(level) for level in range(3, 98, 4) if level != 75)
"""Added to 25, 50, 75: long enough to do something in mid-run."""


def ask_for_many_levels(page: Page) -> None:
    fill(page.get_by_role("textbox", name="Other levels"), MANY_LEVELS)
    expect(page.get_by_text(re.compile(r"\d+ layers × 26 levels"))).to_be_visible()


def start(page: Page, *, images: str) -> None:
    """Press Run on the demo, to be measured on so many images."""
    open_options(page)
    fill(page.get_by_role("spinbutton", name="Images to measure on"), images)
    expect(page.get_by_text(f"on {images} images")).to_be_visible()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/results\?run=[0-9a-f]{32}$"))


def fill(field: Locator, text: str) -> None:
    field.fill(text)
    field.press("Tab")


def wait_for_more(page: Page, than: int) -> None:
    """Wait until more measurements are done, or all are and the results are there."""
    wait_until(
        page,
        """than => [...document.querySelectorAll('summary')].some(head => head.innerText.includes('Layers'))
                || (document.body.innerText.match(/([1-9]\\d*) of \\d+ done/) ?? [0, 0])[1] > than""",
        than,
        seconds=RUN_MILLISECONDS / 1000,
    )


def test_from_one_button_to_a_target_file(page: Page, tmp_path: Path) -> None:
    start(page, images="128")
    wait_for_more(page, 0)  # or the results, which a quick machine has by now

    expect(section(page, "Layers")).to_be_visible(timeout=RUN_MILLISECONDS)
    expect(page).to_have_url(re.compile(r"/results\?run=[0-9a-f]{32}(&(metric|level)=[a-z0-9.]+)*$"))
    expect(page.get_by_role("heading", name=re.compile("Most fragile: .*|No layer loses"))).to_be_visible()
    open_section(page, "Details")
    expect(page.get_by_text("Measured · 128 images")).to_be_visible()
    open_section(page, "Layers")

    bars = page.get_by_test_id("stExpander").locator("path[aria-roledescription=bar]")
    bar = bars.filter(visible=True).first
    bar.wait_for()
    at_rest(page)  # a chart that is drawn anew loses a click
    layer = (bar.get_attribute("aria-label") or "").split(":")[0]
    bar.click(force=True)  # the whisker lies over the bar; a click on either picks the layer
    panel = page.locator(".st-key-layer_panel")
    expect(panel.get_by_text(layer, exact=True)).to_be_visible()
    expect(panel.get_by_text("Parameters")).to_be_visible()

    make_schedule(page)
    expect(page.get_by_text(AMOUNTS)).to_be_visible()
    open_part(page, "Target files")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSON").click()
    assert download.value.suggested_filename == "digits_zeros-schedule.json"
    file = tmp_path / "schedule.json"
    download.value.save_as(file)
    schedule = json.loads(file.read_text())
    assert schedule["budget"] == {"kind": "params", "target": 0.5}
    assert schedule["achieved"]["params"] >= 0.5
    levels = {layer["layer"]: layer["level"] for layer in schedule["layers"]}
    assert len(levels) >= 18
    assert all(0 <= level <= 90 for level in levels.values())

    move_the_target(page, steps=3)
    target = click_a_dot(page)
    lock_the_first_layer(page)
    verify(page, expert=True)
    files = take_everything(page, tmp_path)
    profile = profile_model(build_demo_network().eval(), torch.zeros(1, 1, 32, 32))
    proven = read_schedule(files["schedule.yaml"], profile)
    assert proven.budget == ResourceBudget(kind="params", target=target / 100)
    assert [entry.layer for entry in proven.entries if entry.locked] == [proven.entries[0].layer]
    assert {"schedule.model-explorer.json", "manifest.json"} <= files.keys()
    assert sum(json.loads(files["schedule.fasterai-sparsifier.json"]).values()) > 100


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_the_second_demo_ends_with_a_measured_recommendation_and_five_screens(page: Page) -> None:
    page.get_by_role("button", name="Photographs").click()
    offered = page.get_by_role("button", name=re.compile("Find the smallest good model"))
    expect(offered).to_be_visible(timeout=RUN_MILLISECONDS)
    offered.click()
    recommended = page.get_by_role("heading", name=re.compile(r"× the time \(.* answers stay"))
    expect(recommended).to_be_visible(timeout=2 * RUN_MILLISECONDS)
    open_section(page, "Layers")
    expect(page.get_by_text("Of 100 answers, about so many change").first).to_be_visible()
    page.get_by_role("button", name="Share or save").click()
    page.get_by_role("link", name="Present").click()
    for screen in range(1, 6):
        expect(page.get_by_text(f"{screen} of 5")).to_be_visible()
        page.get_by_role("button", name="Next").click() if screen < 5 else None
