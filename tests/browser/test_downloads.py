"""Downloads answer the page that asked for them, and nobody else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Download, Page, expect

from senseapp.server.outputs import COLUMNS
from tests.browser.servers import Server

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
