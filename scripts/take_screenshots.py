"""Take the pictures of the README's gallery and of the Guide from the running app, with the second demo.

``python -m scripts.take_screenshots [NAME ...]`` makes all of them, or those named, in ``assets/screenshots``; it takes
some ten minutes.
"""

import io
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image, ImageChops
from playwright.sync_api import Locator, Page, ViewportSize, expect, sync_playwright

from scripts.ensure_browser import find_browser
from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.inputs import PHOTOGRAPHS_DEMO
from senseapp.server.service import Service
from senseapp.views.report.document import ReportContents, build_report
from soak.served import served
from tests.browser.waiting import at_rest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "assets" / "screenshots"
SIZE: ViewportSize = {"width": 1280, "height": 1200}
PATIENCE_MILLISECONDS = 240_000
_MENU_WIDTH, _MARGIN = 204, 32  # pixels
_MEASURED = PHOTOGRAPHS_DEMO.sensitivity
BITS = replace(PHOTOGRAPHS_DEMO, sensitivity=replace(_MEASURED, compression=QuantizationConfig(), levels=(8, 6, 4, 3)))
LEVEL = "4 bits"
CHART = "[data-testid=stVegaLiteChart] svg"
ZEROS = replace(PHOTOGRAPHS_DEMO, sensitivity=replace(_MEASURED, compression=SparsityConfig(), levels=(0.4, 0.6, 0.8)))
_RUNS = {"bits": BITS, "zeros": ZEROS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What pictures are taken of: the address of the app, its runs, and a report of the first."""

    url: str
    bits: str
    zeros: str
    report: Path


def main(names: list[str]) -> None:
    """Set the stage and take the pictures called ``names``; none takes all."""
    with tempfile.TemporaryDirectory() as folder, staged(Path(folder)) as stage, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_browser(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        for name in names or SHOTS:
            page = browser.new_page(viewport=SIZE)
            page.set_default_timeout(PATIENCE_MILLISECONDS)
            expect.set_options(timeout=PATIENCE_MILLISECONDS)
            SHOTS[name](page, stage)
            file = FOLDER / f"{name}.png"
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")  # colours tell bands apart
            without_foot(picture).save(file, optimize=True)
            print(name, flush=True)
            page.close()
        browser.close()


def without_foot(picture: Image.Image) -> Image.Image:
    """Return the picture of a page without the empty rows below what it shows beside its menu."""
    beside = picture.crop((_MENU_WIDTH, 0, *picture.size))
    empty = Image.new("RGB", beside.size, beside.getpixel((0, beside.height - 1)))
    shown = ImageChops.difference(beside, empty).getbbox() or (0, 0, *beside.size)
    return picture.crop((0, 0, picture.width, min(picture.height, shown[3] + _MARGIN)))


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Measure the demo twice, recommend, make a report, and serve the app on it until the pictures are taken."""
    backend = Backend(folder / "home")
    service = Service(backend)
    bits, zeros = (service.start(spec, title=f"EfficientNet-Lite0, {what}") for what, spec in _RUNS.items())
    while not all(service.run(run_id).state.finished for run_id in (zeros, bits)):
        time.sleep(0.2)
    result, task = service.result(bits), RecommendationTask(run_id=bits)
    assert result is not None
    service.work.start(task)
    while service.work.outcome(task) is None:
        time.sleep(0.2)
    backend.close()
    report = folder / "report.html"
    report.write_text(build_report(ReportContents(title="EfficientNet-Lite0, bits", result=result)), "utf-8")
    with served(folder / "home") as server:
        yield Stage(url=server.url, bits=bits, zeros=zeros, report=report)


def opened(page: Page, url: str, shown: Locator) -> None:
    """Go to an address, and wait until ``shown`` is there, the page has run, and its charts are drawn."""
    page.goto(url)
    expect(shown.filter(visible=True).first).to_be_visible()
    at_rest(page)
    page.wait_for_load_state("networkidle")


def run(page: Page, stage: Stage) -> None:
    """Show a run in its middle, with its bar and its first bars."""
    page.goto(stage.url)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("progressbar").first).to_be_visible()
    expect(page.locator("path[aria-roledescription=bar]").filter(visible=True).first).to_be_visible()


def page_of(path: str, selector: str) -> Callable[[Page, Stage], None]:
    """Show a page of the run, once ``selector`` is there."""
    return lambda page, stage: opened(page, f"{stage.url}/{path.format(run=stage.bits)}", page.locator(selector))


def view(tab: str, *more: str) -> Callable[[Page, Stage], None]:
    """Show one view of the results, after a press of each of ``more``."""

    def show(page: Page, stage: Stage) -> None:
        opened(page, f"{stage.url}/results?run={stage.bits}&show-layers=yes", page.locator(CHART))
        page.get_by_text(LEVEL, exact=True).first.click()
        at_rest(page)
        page.get_by_role("tab", name=tab, exact=True).click()
        for name in more:
            page.get_by_role("radio", name=name, exact=True).or_(page.get_by_role("button", name=name)).click()
        shown = page.get_by_text("Become zero") if more else page.locator(CHART).filter(visible=True).first
        expect(shown).to_be_visible()
        at_rest(page)

    return show


def compare(page: Page, stage: Stage) -> None:
    """Show bits beside zeros."""
    query = f"run={stage.bits}&run={stage.zeros}&level=4&level=0.6&metric=kl"
    opened(page, f"{stage.url}/compare?{query}", page.get_by_role("heading", name=re.compile("A and B rank")))
    expect(page.get_by_text("Reading these pictures")).to_be_hidden()
    at_rest(page)


def runs(page: Page, stage: Stage) -> None:
    """Show the table of runs."""
    opened(page, f"{stage.url}/runs", page.get_by_test_id("stDataFrame"))
    page.wait_for_timeout(10_000)  # the small bars, drawn on a canvas, come after the table
    at_rest(page)


def report(page: Page, stage: Stage) -> None:
    """Show the report, as a file."""
    page.goto(stage.report.as_uri())
    expect(page.locator("figure.chart img").first).to_be_visible()


SHOTS: dict[str, Callable[[Page, Stage], None]] = {
    "analyze": page_of("", "text=222 k parameters, 23 layers"),
    "run": run,
    "results": page_of("results?run={run}", CHART),
    "curves": view("Curves"),
    "heat_map": view("Heat map"),
    "network": view("More"),
    "histograms": view("More", "Histograms", "Show histogram"),
    "schedule": page_of("schedule?run={run}", "text=How many bits does each layer get?"),
    "compare": compare,
    "runs": runs,
    "report": report,
}


if __name__ == "__main__":
    main(sys.argv[1:])
