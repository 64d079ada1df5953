"""Downloads answer the page that asked for them, and nobody else; a report opens where there is no network."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Download, Page, Route, expect

from senseapp.server.outputs import COLUMNS
from tests.browser.servers import Server
from tests.browser.steps import import_table
from tests.distiller_tables import TABLE

pytestmark = pytest.mark.browser


def pressed(page: Page, button: str) -> Download:
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    return download.value


def test_only_the_page_that_asked_gets_its_file(
    visitor: Callable[[], Page], server: Server, scripted_run: str, tmp_path: Path
) -> None:
    ann, bob = visitor(), visitor()
    bob.goto(f"{server.url}/guide")
    expect(bob.get_by_role("heading", name="Guide").first).to_be_visible()
    ann.goto(f"{server.url}/results?run={scripted_run}&show-layers=yes")
    table, other = pressed(ann, "Download CSV"), pressed(ann, "Download CSV")
    assert table.suggested_filename == "sensitivity.csv"
    assert re.fullmatch(rf"{re.escape(server.url)}/download/[\w-]{{43}}", table.url)
    assert table.url != other.url
    table.save_as(tmp_path / "table.csv")
    text = (tmp_path / "table.csv").read_text()
    assert text.startswith(",".join(COLUMNS))
    own = ann.request.get(table.url)
    assert (own.status, own.text()) == (200, text)
    assert int(own.headers["content-length"]) == len(text.encode())
    assert bob.request.get(table.url).status == 404
    assert visitor().request.get(table.url).status == 404
    own_context = ann.context
    ann.close()
    deadline = time.monotonic() + 20
    while (status := own_context.request.get(table.url).status) != 404 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert status == 404


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
def test_a_report_opens_offline(page: Page, offline: Page, server: Server, tmp_path: Path) -> None:
    (tmp_path / "published.csv").write_text(TABLE)
    page.goto(f"{server.url}/runs")
    import_table(page, tmp_path / "published.csv")
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
    expect(offline.get_by_role("cell", name="28.5 points (unknown)")).to_be_visible()
