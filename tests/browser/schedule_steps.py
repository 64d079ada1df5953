"""What a person does on the Schedule page after a run: move, lock, verify, take away."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.waiting import at_rest

PROOF_MILLISECONDS = 240_000
AMOUNTS = re.compile(r"How (much|many) .*each layer")
"""The question of the bars, which follows the compression."""
_UNFOLDS_MILLISECONDS = 600  # it opens gradually, and its charts are drawn anew for their width
_MOST_TRIES, _ANSWERS_MILLISECONDS = 4, 5_000
HEADER, ROW = 35, 35  # pixels of the table, which is drawn and not made of elements


def open_part(page: Page, name: str) -> None:
    """Unfold one of the parts below the schedule, once nothing above moves it any more."""
    at_rest(page)
    part = page.locator("details", has=page.locator("summary", has_text=name)).last
    if part.get_attribute("open") is None:
        part.locator("summary").first.click()
        page.wait_for_timeout(_UNFOLDS_MILLISECONDS)
    expect(part).to_have_attribute("open", "")


def move_the_target(page: Page, *, steps: int) -> None:
    """Press the arrow key on the target's slider; the bars and figures answer."""
    slider = page.get_by_role("slider", name="Target")
    expect(slider).to_be_visible()
    before = int(slider.input_value())
    slider.focus()
    for _ in range(steps):
        page.keyboard.press("ArrowRight")
    expect(slider).to_have_value(str(before + steps))
    expect(
        page.get_by_text(re.compile(rf"100 % → {99 - before - steps}\.\d %|100 % → {100 - before - steps}\.0 %"))
    ).to_be_visible()


def click_a_dot(page: Page, number: int = 8) -> int:
    """Take a schedule of the trade-off, and return the target that it has."""
    open_part(page, "Trade-off")
    dot = page.locator("path[aria-roledescription=point]").filter(visible=True).nth(number)
    figure = float(re.search(r"([\d.]+) %", dot.get_attribute("aria-label") or "")[1])
    dot.scroll_into_view_if_needed()
    at_rest(page)
    dot.click(force=True)
    expect(page.get_by_role("slider", name="Target")).to_have_value(str(int(figure)))
    return int(figure)


def lock_the_first_layer(page: Page) -> None:
    """Tick Locked in the first row of the table, once it is drawn."""
    open_part(page, "Single layers")
    table = page.get_by_test_id("stDataFrame").last
    expect(table).to_be_visible()
    unlock = page.get_by_role("button", name="Unlock all layers")
    for _ in range(_MOST_TRIES):  # a table that is drawn anew for another target hears no keys
        at_rest(page)
        table.click(position={"x": 60, "y": HEADER + ROW // 2})
        for key in ("ArrowRight", "ArrowRight", "Enter"):
            page.keyboard.press(key)
        page.wait_for_timeout(_ANSWERS_MILLISECONDS)
        if unlock.is_visible():
            break
    expect(unlock).to_be_visible()


def verify(page: Page, *, expert: bool = False) -> None:
    """Let the schedule be measured, and see it beside the prediction, for an expert with every form of the model."""
    page.get_by_role("button", name="Check the whole schedule").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(page.get_by_text(re.compile(r"on \d+ other images"))).to_be_visible(timeout=PROOF_MILLISECONDS)
    open_part(page, "Proof")
    expect(page.get_by_role("button", name="Compressed model: weights (")).to_be_visible()
    for label in ("Before", "Compressed", "Uniform") if expert else ():
        expect(page.locator("[role=gridcell]", has_text=label).first).to_be_attached()
    open_part(page, "Trade-off")
    marks = page.locator("svg text", has_text=re.compile("^Measured$"))
    expect(marks.first).to_be_attached()


def take_everything(page: Page, folder: Path) -> dict[str, bytes]:
    """Download the zip of target files, and return what is in it."""
    open_part(page, "Target files")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download every format (zip)").click()
    file = folder / "schedule.zip"
    download.value.save_as(file)
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
