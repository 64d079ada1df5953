"""Short forms of the soaks: a server without torch, visitors who speak its protocol, and what it holds afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.bad_conditions import database_damaged_under
from soak.cli_fuzz import fuzz
from soak.crowd import crowd
from soak.day import MOST_GROWN_BYTES, MOST_KEPT_UPLOADS, SETTINGS, Day, live
from soak.hostile import SETTINGS as HOSTILE_SETTINGS
from soak.hostile import hostile, sound_files
from soak.hostile_files import FAMILIES
from soak.kill_moments import InRun, Scene
from soak.killed_server import check_home, wait_until_gone
from soak.served import Served, served
from soak.strangers import endless, foreign, idle
from soak.two_people import forge, served_with_login
from soak.uploads import SOUND, clear, stored, uploads
from soak.visitor import Visitor
from tests.asynchronous import run_async

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("served")
    with served(home, module="soak.scripted_server", **SETTINGS) as running:
        yield running


def has_come(page: Visitor) -> bool:
    return any("Choose another file" in label for label in page.labels())


@pytest.mark.wide
def test_people_watch_and_click_while_a_run_measures(server: Served) -> None:
    report = run_async(crowd(server, 4, images=24, more_levels="", pause=(0.0, 0.2)))
    assert report.clicks
    assert report.looks
    assert "Traceback" not in server.log()


@pytest.mark.wide
def test_a_short_day_leaves_nothing_behind(server: Served) -> None:
    warm, day = Day(runs=1, uploads=2, loads=2), Day(runs=1, uploads=4, loads=6)
    report = run_async(live(server, day, warm=warm, settle_seconds=3, understood=has_come))
    assert report.grown_bytes < MOST_GROWN_BYTES
    assert report.nothing_left, report
    assert len(stored(server)) == warm.uploads + MOST_KEPT_UPLOADS
    clear(server)
    assert "Traceback" not in server.log()


@pytest.mark.wide
def test_hostile_uploads_leave_nothing_and_sound_ones_every_byte(server: Served) -> None:
    kinds = (*SOUND, "broken off", "unasked", "without token")
    report = run_async(uploads(server, 12, kinds=kinds))
    assert report.wrong == ()
    assert report.grown_bytes < MOST_GROWN_BYTES
    clear(server)


@pytest.mark.wide
def test_nothing_that_another_person_forges_goes_through(tmp_path: Path) -> None:
    with served_with_login(tmp_path) as running:
        report = run_async(forge(running, 1, ("runs",)))
        told = running.log().splitlines()  # a download that is refused is told of with all that led to it
    assert not [line for line in told if "Traceback" in line and "There is no such download" not in line]
    assert report.through == []
    assert report.forged > 10


@pytest.mark.wide
def test_command_lines_end_in_one_line() -> None:
    assert fuzz(150, seed=1) == []


ONE_OF_EACH_KIND = ("copied arguments", "many names", "large run", "broken table")  # those that take most memory


@pytest.mark.wide
def test_hostile_files_cost_their_sender_a_sentence(tmp_path: Path) -> None:
    """Checkpoints of every family are read in ``test_networks_pickled``, and brought to the app by ``make soak``.

    Times are judged there too, on a quiet machine.
    """
    kinds = ("far memo", "code", *(name for name, kind, _ in FAMILIES if kind != "checkpoint"), "mutated")
    number = len(kinds) + 4  # one file of each, and five sound ones with a few bytes changed
    with served(tmp_path / "home", **HOSTILE_SETTINGS) as running:
        report = hostile(
            running,
            sound_files(tmp_path),
            number,
            only=kinds,
            beside=False,
            warming=ONE_OF_EACH_KIND,
            quiet=False,
        )
    assert report.wrong == {}
    assert report.files == number
    assert "Traceback" not in running.log()


class InShortRun(InRun):
    """The scripted engine makes 18 measurements, ten in a second."""

    latest = 4


@pytest.mark.wide
def test_a_killed_server_loses_nothing_and_a_damaged_database_is_told(tmp_path: Path) -> None:
    chance = random.Random(0)
    scene = Scene(victim="server", number=1, home=tmp_path / "home", run_id="", chance=chance, patience={})
    moment = InShortRun(scene)

    async def strike(server: Served) -> None:
        async with Visitor(server.url) as page:
            await moment.strike(server, page)

    async def go_on(server: Served) -> None:
        async with Visitor(server.url) as page:
            await moment.go_on(server, page)

    with served(scene.home, module="soak.scripted_server", **SETTINGS) as server:
        run_async(strike(server))
    wait_until_gone(scene.jobs)
    with served(scene.home, module="soak.scripted_server", **SETTINGS) as server:
        run_async(go_on(server))
        assert moment.kept >= 1
        database_damaged_under(server, moment.run_id)
        check_home(scene.home)


@pytest.mark.wide
def test_strangers_and_endless_texts_are_refused_and_silent_connections_go(server: Served) -> None:
    assert foreign(server) == []
    silent = idle(server, 300)
    assert silent.after <= silent.before + 8, silent
    texts = run_async(endless(server, "", places=("",), most_fields=2))
    assert texts.sent == 16
    assert texts.wrong == []
