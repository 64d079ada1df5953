"""A large upload goes to the disk and not into the server's memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.browser.analyze_steps import open_block
from tests.browser.servers import Server
from tests.pictures import class_files, write_zip

pytestmark = [pytest.mark.browser, pytest.mark.wide]

FILLER_BYTES = 100_000_000
ALLOWED_BYTES = 50_000_000


@contextmanager
def peak_memory(pid: int) -> Iterator[list[int]]:
    """Watch a process's own memory, and add its peak to the list that is given."""
    process, peak, done = psutil.Process(pid), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], own_memory(process))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def own_memory(process: psutil.Process) -> int:
    """Bytes that are not pages of files, which the system drops when it likes."""
    known = process.memory_info()
    return int(known.rss - known.shared)


def test_a_large_zip_costs_the_server_hardly_any_memory(page: Page, server: Server, tmp_path: Path) -> None:
    pictures = {**class_files(("0", "1"), each=3), "filler.txt": os.urandom(FILLER_BYTES)}
    path = write_zip(tmp_path / "large.zip", pictures)
    del pictures
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()
    expect(page.get_by_text("222 k parameters, 23 layers")).to_be_visible()  # torch is loaded
    open_block(page, "Images")
    page.get_by_text("Upload images", exact=True).click()
    field = page.get_by_test_id("stFileUploader").filter(has_text="Images")
    expect(field).to_be_visible()
    assert server.process is not None
    pid = server.process.pid
    before = own_memory(psutil.Process(pid))
    with peak_memory(pid) as peak:
        field.locator("input[type=file]").set_input_files(path)
        expect(page.get_by_text("6 images · 2 classes")).to_be_visible()
    assert peak[0] - before < ALLOWED_BYTES
    stored = list((server.home / "uploads").rglob("large.zip"))
    assert [file.stat().st_size for file in stored] == [path.stat().st_size]
    page.get_by_role("button", name="Choose another file").click()
    expect(field).to_be_visible()
    assert not stored[0].exists()
