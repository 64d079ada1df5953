"""Short forms of the soaks: a server without torch, visitors who speak its protocol, and what it holds afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.asynchronous import run_async
from tests.soak.crowd import crowd
from tests.soak.day import MOST_GROWN_BYTES, SETTINGS, Day, live
from tests.soak.served import Served, served
from tests.soak.visitor import Visitor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("served")
    with served(home, module="tests.soak.scripted_server", **SETTINGS) as running:
        yield running


def has_come(page: Visitor) -> bool:
    return any("Choose another file" in label for label in page.labels())


def test_people_watch_and_click_while_a_run_measures(server: Served) -> None:
    report = run_async(crowd(server, 4, images=24, more_levels="", pause=(0.0, 0.2)))
    assert report.clicks
    assert report.looks
    assert "Traceback" not in server.log()


def test_a_short_day_leaves_nothing_behind(server: Served) -> None:
    warm, day = Day(runs=1, uploads=2, loads=2), Day(runs=1, uploads=3, loads=6)
    report = run_async(live(server, day, warm=warm, settle_seconds=3, understood=has_come))
    assert report.grown_bytes < MOST_GROWN_BYTES
    assert report.nothing_left, report
    assert not [path for path in (server.home / "uploads").rglob("*") if path.is_file()]
    assert "Traceback" not in server.log()
