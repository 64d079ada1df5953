"""What a person does by hand on each page."""

import os
import re
import zipfile
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import Locator, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.browser.waiting import at_rest

RUN_MILLISECONDS = 240_000
AMOUNTS = re.compile(r"How (much|many) .*each layer")
"""The question of the bars, which follows the compression."""
_UNFOLDS_MILLISECONDS = 600  # it opens gradually, and its charts are drawn anew for their width
_MOST_TRIES, _ANSWERS_MILLISECONDS = 4, 5_000
HEADER, ROW = 35, 35  # pixels of the table, which is drawn and not made of elements


# ---- Analyze


def open_block(page: Page, title: str) -> None:
    """Show the fields of the block of this title, such as ``Images``; one in which something is missing is open."""
    at_rest(page)
    fields = page.locator(f".st-key-block_{title.lower()}_open")
    if not fields.is_visible():
        page.locator(f".st-key-block-{title.lower()}-open").get_by_role("button", name="Change").click()
    expect(fields).to_be_visible()


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


def uploader(page: Page, label: str) -> Locator:
    """Return the uploader with this label."""
    return page.get_by_test_id("stFileUploader").filter(has_text=label)


def offer_checkpoint(page: Page, path: Path) -> None:
    """Upload a file of weights."""
    open_block(page, "Model")
    page.get_by_text("Your weights (.pt, .safetensors)", exact=True).click()
    uploader(page, "Model file (.pt").locator("input[type=file]").set_input_files(path)


def offer_images(page: Page, path: Path) -> None:
    """Upload images."""
    open_block(page, "Images")
    page.get_by_text("Upload images", exact=True).click()
    uploader(page, "Images").locator("input[type=file]").set_input_files(path)


def offer_graph(page: Page, path: Path) -> None:
    """Upload an ONNX file."""
    open_block(page, "Model")
    at_rest(page)
    page.get_by_text("Your network (.onnx)", exact=True).first.click()
    uploader(page, "Model file (.onnx)").locator("input[type=file]").set_input_files(path)


def run_to_results(page: Page) -> None:
    """Press Run, and wait for the layers."""
    button = page.get_by_role("button", name="Run", exact=True)
    expect(button).to_be_enabled()
    button.click()
    expect(page).to_have_url(re.compile(r"/(run|results)\?run=[0-9a-f]{32}$"))
    expect(section(page, "Layers")).to_be_visible(timeout=RUN_MILLISECONDS)


# ---- Runs


def import_table(page: Page, file: Path) -> None:
    """Import ``file`` on the Runs page, which is open."""
    page.get_by_test_id("stPopover").get_by_role("button", name="Import").click()
    page.get_by_role("tab", name="Sensitivity CSV").click()
    uploader = page.get_by_test_id("stFileUploader").filter(has_text="Sensitivity CSV")  # there is another beside it
    uploader.locator("input[type=file]").set_input_files(file)
    expect(uploader.get_by_text(file.name)).to_be_visible()
    page.get_by_role("tabpanel").get_by_role("button", name="Import", exact=True).click()


def tick(page: Page, row: int) -> None:
    """Tick a row, counted from 1, once the table is there; each has its tick at the left, below the head."""
    table = page.get_by_test_id("stDataFrame")
    expect(table.locator("[role=gridcell]").first).to_be_attached()
    table.locator(".dvn-scroller").first.click(position={"x": 17, "y": ROW * row + 17})


# ---- Results


def section(page: Page, name: str) -> Locator:
    """Return the head of a section, which is there once a run has finished."""
    return page.get_by_test_id("stExpander").locator("summary").filter(has_text=name)


def open_section(page: Page, name: str) -> None:
    """Unfold a section, once the page has run."""
    at_rest(page)
    section(page, name).click()
    expect(page.locator("details[open] > summary").filter(has_text=name)).to_be_visible()


def make_schedule(page: Page) -> None:
    """Go to the Schedule page of the run."""
    open_section(page, "Schedule")
    page.get_by_role("link", name="Make a schedule").click()


# ---- Schedule


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
        with suppress(PlaywrightTimeout):
            unlock.wait_for(timeout=_ANSWERS_MILLISECONDS)
            break
    expect(unlock).to_be_visible()


def verify(page: Page, *, expert: bool = False) -> None:
    """Let the schedule be measured, and see it beside the prediction, for an expert with every form of the model."""
    page.get_by_role("button", name="Check the whole schedule").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    line = re.compile(r"on \d+ (unseen images|images also used to make or choose it)")
    expect(page.get_by_text(line)).to_be_visible(timeout=RUN_MILLISECONDS)
    open_part(page, "Proof")
    expect(page.get_by_role("button", name="Compressed model: weights (")).to_be_visible()
    for label in ("Before", "Compressed", "Uniform") if expert else ():
        expect(page.locator("[role=gridcell]", has_text=label).first).to_be_attached()
    open_part(page, "Trade-off")
    expect(page.locator("svg text", has_text=re.compile("^Measured$")).first).to_be_attached()


def take_everything(page: Page, folder: Path) -> dict[str, bytes]:
    """Download the zip of target files, and return what is in it."""
    open_part(page, "Target files")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download every format (zip)").click()
    file = folder / "schedule.zip"
    download.value.save_as(file)
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def looked_at(page: Page, name: str, shown: Locator | None = None) -> None:
    """Keep a picture of the page, with ``shown`` in sight, where somebody wants to look at it."""
    if folder := os.environ.get("SCREENSHOTS"):
        if shown is not None:
            shown.scroll_into_view_if_needed()
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=shown is None)
