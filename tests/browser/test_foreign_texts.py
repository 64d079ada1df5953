"""Markup in every text that a run file may hold is shown letter by letter on every page, and asks for nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.browser.servers import SCRIPTED, Server, serving
from tests.marked_run_file import MARKUP, marked_run_file

pytestmark = pytest.mark.browser

SAVED = Path(__file__).parents[1] / "fixtures" / "main_2026_11"
FILES = ("pruning", "quantization")
JOINER = "\u2060"
ACTING = ", ".join((
    "a[href*='evil']:not([href^='#'])", "img[src*='evil']", "img[alt='pic']", "[aria-label='skull icon']",
    "b:text('evil')",
    "strong:text-is('evil')", "del:text('evil')", ".katex", ".stMarkdownColoredText:text('evil')",
    ".stMarkdownColoredBackground:text('evil')", ".stMarkdownBadge:text('evil')",
))  # fmt: skip
"""What markup in texts would have become."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Server, list[str]]:
    """A server that is not started yet, and the runs with marked texts in its home."""
    folder = tmp_path_factory.mktemp("foreign")
    server = Server(folder, command=SCRIPTED)
    backend = Backend(server.home, workers=0, data_roots=())
    service, imported = Service(backend), []
    for name in FILES:
        content, taken = marked_run_file(SAVED / f"{name}.senserun.zip")
        assert len(taken) >= 20, taken
        file = folder / "marked.zip"
        file.write_bytes(content)
        imported.append(service.import_run(file))
    backend.close()
    return server, imported


@pytest.fixture(scope="module")
def server(runs: tuple[Server, list[str]]) -> Iterator[Server]:
    with serving(runs[0]):
        yield runs[0]


def check(page: Page) -> None:
    """See that the page shows the markup as it was written, and that none of it acts."""
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)
    expect(page.locator("[data-test-script-state='running']")).to_have_count(0)
    assert page.locator(ACTING).count() == 0, page.locator(ACTING).first.evaluate("each => each.outerHTML")


@pytest.fixture
def asked(page: Page) -> Iterator[list[str]]:
    """What the page asks of addresses in the texts: nothing."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url) if "evil" in request.url else None)
    yield found
    assert found == []


@pytest.mark.wide
@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("file", [0, pytest.param(1, marks=pytest.mark.wide)], ids=FILES)
def test_markup_of_a_run_file_is_shown_as_it_was_written(
    page: Page, server: Server, runs: tuple[Server, list[str]], file: int
) -> None:
    run_id = runs[1][file]
    page.goto(f"{server.url}/results?run={run_id}&show-layers=yes")
    expect(page.get_by_role("heading", level=1).last).to_contain_text("evil.example")
    assert MARKUP in page.get_by_role("heading", level=1).last.inner_text().replace(JOINER, "")
    for tab in page.get_by_role("tab").all():
        tab.click()
        check(page)
    page.goto(f"{server.url}/schedule?run={run_id}")
    expect(page.get_by_text("More settings")).to_be_visible()
    check(page)
    page.goto(f"{server.url}/present?run={run_id}")
    expect(page.get_by_role("heading", level=1).first).to_be_visible()
    check(page)


@pytest.mark.wide
@pytest.mark.usefixtures("asked")
def test_markup_is_shown_as_it_was_written_where_runs_are_together(
    page: Page, server: Server, runs: tuple[Server, list[str]]
) -> None:
    first, second = runs[1]
    for place in ("runs", f"compare?run={first}&run={second}", f"compare?run={first}"):
        page.goto(f"{server.url}/{place}")
        expect(page.get_by_role("heading", level=1).first).to_be_visible()
        check(page)
