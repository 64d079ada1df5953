"""Two runs beside each other, and a run as a file that opens where there is no network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.import_steps import import_table
from tests.browser.runs_steps import tick
from tests.browser.servers import Server

pytestmark = pytest.mark.browser

HEADER = "parameter,sparsity,top1,top5,loss"
LAYERS = ("conv1", "layer1.0.conv1", "layer1.0.conv2", "fc")


def table(path: Path, drops: tuple[float, ...]) -> Path:
    """A published table in which each layer loses so many points at 50 %, and half of it at 25 %."""
    rows = [
        f"module.{layer}.weight,{level},{90 - 2 * level * drop},{99 - level * drop},{0.3 + level * drop / 10}"
        for layer, drop in zip(LAYERS, drops, strict=True)
        for level in (0.0, 0.25, 0.5)
    ]
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


@pytest.fixture
def landing(server: Server) -> str:
    return f"{server.url}/runs"


def import_and_open(page: Page, path: Path) -> None:
    import_table(page, path)
    expect(page.get_by_role("heading", name=re.compile("Most fragile: "))).to_be_visible()


@pytest.mark.wide
def test_two_runs_are_ticked_and_compared(page: Page, landing: str, tmp_path: Path) -> None:
    import_and_open(page, table(tmp_path / "first.csv", (8.0, 4.0, 2.0, 1.0)))
    page.goto(landing)
    import_and_open(page, table(tmp_path / "second.csv", (1.0, 2.0, 4.0, 8.0)))
    page.goto(landing)
    expect(page.get_by_test_id("stDataFrame").locator("[role=gridcell]", has_text="first").first).to_be_attached()
    for row in (1, 2):
        tick(page, row)
        expect(page.get_by_role("button", name=f"Compare {row} run")).to_be_enabled()
    page.get_by_role("button", name="Compare 2 runs").click()
    expect(page).to_have_url(re.compile(r"/compare\?run=[0-9a-f]{32}&run=[0-9a-f]{32}$"))
    headline = "A and B rank 4 layers in the opposite order: −1.00, where 1 is the same order."
    expect(page.get_by_role("heading", name=headline)).to_be_visible()
    bars = page.locator("path[aria-roledescription=bar]").filter(visible=True)
    expect(bars).to_have_count(8)
    bars.first.click(force=True)
    picked = page.locator(".st-key-compare_picked")
    expect(picked.get_by_text("A · first, 50 %: 8.0 points")).to_be_visible()
    expect(picked.get_by_text("B · second, 50 %: 1.0 points")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name=headline)).to_be_visible()


@pytest.fixture
def offline(browser: Browser) -> Iterator[Page]:
    """A browser without a network, which must not even try to use one."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    opened = context.new_page()
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    opened.route(re.compile("^(?!file:|data:|blob:)"), refuse)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield opened
    context.close()
    assert asked == []
    assert errors == []


@pytest.mark.wide
def test_a_report_opens_offline(page: Page, offline: Page, tmp_path: Path) -> None:
    import_and_open(page, table(tmp_path / "published.csv", (8.0, 4.0, 2.0, 1.0)))
    page.get_by_role("button", name="Share or save").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download report").click()
    assert download.value.suggested_filename.endswith("_zeros-report.html")
    file = tmp_path / "report.html"
    download.value.save_as(file)
    assert file.stat().st_size < 3_000_000

    offline.goto(file.as_uri())
    expect(offline.get_by_role("heading", name="published", exact=True)).to_be_visible()
    picture = offline.locator("figure.chart img")
    assert picture.evaluate("image => image.complete && image.naturalHeight") > 100
    offline.get_by_text("Loss of right answers when one layer is compressed").click()
    expect(offline.get_by_role("cell", name="8.0 points (unknown)")).to_be_visible()
