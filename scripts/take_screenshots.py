"""Take the pictures of the README's gallery and of the Guide from the running app, with the second demo.

``python -m scripts.take_screenshots [NAME ...]`` makes all of them, or those named, in ``assets/screenshots``; it takes
some ten minutes. Needs the group ``dev`` of pyproject.toml, and Chromium.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from scripts.ensure_browser import find_browser
from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.inputs import PHOTOGRAPHS_DEMO
from senseapp.server.service import Service
from senseapp.views.report.document import ReportContents, build_report
from soak.served import served

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "assets" / "screenshots"
SIZE: ViewportSize = {"width": 1280, "height": 1200}
MOST_BYTES = 400_000
PATIENCE_MILLISECONDS = 240_000
_MEASURED = PHOTOGRAPHS_DEMO.sensitivity
BITS = replace(PHOTOGRAPHS_DEMO, sensitivity=replace(_MEASURED, compression=QuantizationConfig(), levels=(8, 6, 4, 3)))
LEVEL = "4 bits"
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
    unknown = set(names) - set(SHOTS)
    if unknown:
        sys.exit(f"No such picture: {', '.join(sorted(unknown))}. There are: {', '.join(SHOTS)}.")
    with tempfile.TemporaryDirectory() as folder, staged(Path(folder)) as stage, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_browser(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        for name in names or SHOTS:
            page = browser.new_page(viewport=SIZE)
            page.set_default_timeout(PATIENCE_MILLISECONDS)
            expect.set_options(timeout=PATIENCE_MILLISECONDS)
            SHOTS[name](page, stage)
            size = save(page.screenshot(), FOLDER / f"{name}.png")
            print(f"{name}: {size // 1000} kB", flush=True)
            page.close()
        browser.close()


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


def save(png: bytes, path: Path) -> int:
    """Write a picture in all its colours, which tell bands apart, and return its size in bytes."""
    Image.open(io.BytesIO(png)).convert("RGB").save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{path.name} has {size} bytes; the repository takes pictures of {MOST_BYTES} at most.")
    return size


def settled(page: Page) -> None:
    """Wait until the page has run and its charts are drawn."""
    page.wait_for_selector("[data-testid='stApp'][data-test-script-state='notRunning']", state="attached")
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)
    page.wait_for_load_state("networkidle")


def analyze(page: Page, stage: Stage) -> None:
    """Show the start page with the demo filled in."""
    page.goto(stage.url)
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()
    expect(page.get_by_text("222 k parameters, 23 layers")).to_be_visible()
    settled(page)


def run(page: Page, stage: Stage) -> None:
    """Show a run in its middle, with its bar and its first bars."""
    page.goto(stage.url)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("progressbar").first).to_be_visible()
    expect(page.locator("path[aria-roledescription=bar]").filter(visible=True).first).to_be_visible()


def answer(page: Page, stage: Stage) -> None:
    """Show the answer of a run, and its folded sections."""
    page.goto(f"{stage.url}/results?run={stage.bits}")
    expect(page.locator("[data-testid=stVegaLiteChart] svg").first).to_be_visible()
    settled(page)


def results(tab: str) -> Callable[[Page, Stage], None]:
    """Show one view of the results, once its charts are drawn."""

    def show(page: Page, stage: Stage) -> None:
        page.goto(f"{stage.url}/results?run={stage.bits}&show-layers=yes")
        page.get_by_text(LEVEL, exact=True).first.click()
        settled(page)
        page.get_by_role("tab", name="More" if tab == "Network" else tab, exact=True).click()
        expect(page.locator("[data-testid=stVegaLiteChart] svg").filter(visible=True).first).to_be_visible()
        settled(page)

    return show


def histograms(page: Page, stage: Stage) -> None:
    """Show a layer's weights on their grid."""
    page.goto(f"{stage.url}/results?run={stage.bits}&show-layers=yes")
    page.get_by_role("tab", name="More", exact=True).click()
    page.get_by_role("radio", name="Histograms", exact=True).click()
    page.get_by_role("button", name="Show histogram").click()
    expect(page.get_by_text("Become zero")).to_be_visible()
    settled(page)


def schedule(page: Page, stage: Stage) -> None:
    """Show the schedule that is recommended."""
    page.goto(f"{stage.url}/schedule?run={stage.bits}")
    expect(page.get_by_text("How many bits does each layer get?")).to_be_visible()
    settled(page)


def compare(page: Page, stage: Stage) -> None:
    """Show bits beside zeros."""
    page.goto(f"{stage.url}/compare?run={stage.bits}&run={stage.zeros}&level=4&level=0.6&metric=kl")
    expect(page.get_by_role("heading", name=re.compile("A and B rank"))).to_be_visible()
    expect(page.get_by_text("Reading these pictures")).to_be_hidden()
    settled(page)


def runs(page: Page, stage: Stage) -> None:
    """Show the table of runs."""
    page.goto(f"{stage.url}/runs")
    expect(page.get_by_test_id("stDataFrame")).to_be_visible()
    page.wait_for_timeout(10_000)  # the small bars, drawn on a canvas, come after the table
    settled(page)


def report(page: Page, stage: Stage) -> None:
    """Show the report, as a file."""
    page.goto(stage.report.as_uri())
    expect(page.locator("figure.chart img").first).to_be_visible()


SHOTS: dict[str, Callable[[Page, Stage], None]] = {
    "analyze": analyze,
    "run": run,
    "results": answer,
    "curves": results("Curves"),
    "heat_map": results("Heat map"),
    "network": results("Network"),
    "histograms": histograms,
    "schedule": schedule,
    "compare": compare,
    "runs": runs,
    "report": report,
}


if __name__ == "__main__":
    main(sys.argv[1:])
