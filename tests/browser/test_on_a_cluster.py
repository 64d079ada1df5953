"""The app with ``SENSEAPP_RAY_ADDRESS`` set: the same one button, and two workers measure."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.servers import Server, serving
from tests.browser.test_journey import RUN_MILLISECONDS, start
from tests.ray_cluster import two_nodes

pytestmark = pytest.mark.browser


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that finds a cluster in its environment."""
    with (
        two_nodes(gone_seconds=1) as cluster,
        serving(Server(tmp_path, {"SENSEAPP_RAY_ADDRESS": cluster.address})) as started,
    ):
        yield started


def test_the_button_runs_on_the_cluster(page: Page) -> None:
    start(page, images="64")
    expect(page.get_by_text(re.compile("Joining the cluster|Loading|Measuring"))).to_be_visible()
    expect(page.get_by_role("tab", name="Heat map")).to_be_visible(timeout=RUN_MILLISECONDS)
    expect(page.get_by_text(re.compile("64 images.*on cpu of 2 workers"))).to_be_visible()
