"""One person's runs, and another who forges every message about them; a logout, and the cookie from before it.

Run as ``python -m soak.two_people [--rounds 4]``; exits with 0 if nothing that was forged went through. People
log in by cookies that are signed as those of a login are; no provider is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from streamlit.proto.WidgetStates_pb2 import WidgetState
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value

from senseapp.store.run_store import RunStore
from soak.crowd import start_run, time_run
from soak.downloads import REFUSED, get
from soak.served import Served, served
from soak.visitor import PageBroke, Visitor, browser_cookies

SECRET = "a secret of this soak alone, and long enough"
SETTINGS = {"OMP_NUM_THREADS": "1", "SENSEAPP_RUNS_PER_MINUTE": "10000"}
PLACES = ("runs", "results", "schedule", "compare", "")
_TRIGGERS = ("button", "download_button")


@dataclass(kw_only=True)
class Report:
    """What came of the forgeries."""

    forged: int = 0
    through: list[str] = field(default_factory=list)

    def count(self, what: str, *, through: bool) -> None:
        self.forged += 1
        if through:
            self.through.append(what)


@contextmanager
def served_with_login(folder: Path) -> Iterator[Served]:
    """Serve the app to people who log in; Streamlit finds its secrets in the user's home."""
    secrets = folder / ".streamlit" / "secrets.toml"
    secrets.parent.mkdir(parents=True)
    settings = {
        "redirect_uri": "http://localhost/oauth2callback",
        "cookie_secret": SECRET,
        "client_id": "soak",
        "client_secret": "unused",
        "server_metadata_url": "http://localhost:1/",
    }
    secrets.write_text("[auth]\n" + "\n".join(f'{name} = "{value}"' for name, value in settings.items()))
    with served(folder / "home", module="soak.scripted_server", HOME=str(folder), **SETTINGS) as server:
        yield server


def login_of(server: Served, who: str, number: int = 0) -> dict[str, str]:
    """Return the cookies of somebody's browser after their login of this number."""
    claims = {"iss": "https://login.example", "sub": who, "name": who.capitalize(), "iat": number}
    payload = json.dumps({"origin": server.url, "is_logged_in": True} | claims)
    signed = create_signed_value(SECRET, "_streamlit_user", payload).decode()
    return browser_cookies(server.url) | {"_streamlit_user": signed}


def whole(server: Served, run_id: str) -> tuple[object, ...]:
    """Return all that must not change of a run: its row, and its files with their content.

    Not its log, nor the graph of its network, which the owner's own page exports in the background.
    """
    store = RunStore(server.home)
    record = store.record(run_id)
    files = sorted(path for path in (store.folder_of_runs / run_id).rglob("*") if path.is_file())
    kept = tuple(
        (path.name, path.read_bytes()) for path in files if path.name != "log.jsonl" and "graph" not in path.name
    )
    return record.title, record.state, record.owner, record.link, record.headline, kept


def widgets_of(page: Visitor) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the ids of a page's widgets with what is written on them, and the ids of its deferred downloads."""
    found, deferred = [], []
    for element in page.elements():
        kind = element.WhichOneof("type")
        widget = getattr(element, kind)
        if getattr(widget, "id", ""):
            found.append((widget.id, kind))
        if kind == "download_button" and widget.deferred_file_id:
            deferred.append(widget.deferred_file_id)
    return found, deferred


def forged_states(widget_id: str, kind: str) -> list[WidgetState]:
    """Return what a browser might say of a widget."""
    if kind in _TRIGGERS:
        return [WidgetState(id=widget_id, trigger_value=True)]
    return [WidgetState(id=widget_id, bool_value=True), WidgetState(id=widget_id, string_value="forged")]


async def forge(server: Served, rounds: int, places: Sequence[str] = PLACES) -> Report:
    """Let Bob forge what Ann's pages can say, then let Ann log out and replay her cookie."""
    report = Report()
    bobs = login_of(server, "bob")
    for number in range(rounds):
        anns = login_of(server, "ann", number)
        async with Visitor(server.url, cookies=anns) as ann:
            run_id = await start_run(ann, images=8, seed=number)
            await time_run(ann)
            before = whole(server, run_id)
            for place in places:
                await ann.go(place, f"run={run_id}")
                if place == "runs":
                    await ann.tick_first_row()  # what can be done with a run is shown then
                await _forge_page(server, ann, bobs, place, run_id, before, report)
            await ann.go("results", f"run={run_id}")
            address = await ann.address_of("CSV data")
            await _replay(server, ann, anns, address, places, report)
    return report


async def _forge_page(
    server: Served,
    ann: Visitor,
    bobs: Mapping[str, str],
    place: str,
    run_id: str,
    before: tuple[object, ...],
    report: Report,
) -> None:
    found, deferred = widgets_of(ann)
    async with Visitor(server.url, place, f"run={run_id}", cookies=bobs) as bob:
        own = {widget_id for widget_id, _ in widgets_of(bob)[0]}  # he may press those
        for widget_id, kind in found:
            for state in forged_states(widget_id, kind) if widget_id not in own else ():
                await bob.go(place, f"run={run_id}")
                with suppress(PageBroke):
                    await bob.say(state)
                after = whole(server, run_id)
                report.count(f"{kind} {widget_id} on {place}", through=after != before)
        for file_id in deferred:
            with suppress(PageBroke):
                address = await bob.made_for(file_id)
                report.count(f"download on {place}", through=get(address, bob.cookies)[0] not in REFUSED)


async def _replay(
    server: Served,
    ann: Visitor,
    anns: Mapping[str, str],
    address: str,
    places: Sequence[str],
    report: Report,
) -> None:
    """Log out, then do everything with the cookie from before."""
    assert get(address, ann.cookies)[0] == 200
    report.count("a logout by address", through=get(f"{server.url}/auth/logout", ann.cookies)[0] not in REFUSED)
    async with Visitor(server.url, "runs", cookies=anns) as still:
        report.count("the login after a logout by address", through=still.has("button", "Log in"))
    await ann.click("Log out")
    report.count("download after the logout", through=get(address, ann.cookies)[0] not in REFUSED)
    with suppress(OSError):
        await asyncio.to_thread(ann.send_file, b"pictures")
        report.count("upload after the logout", through=True)
    report.count("the page that was open", through=not await _is_out(ann))
    for place in places:
        async with Visitor(server.url, place, cookies=anns) as again:
            report.count(f"the old cookie on {place}", through=not await _is_out(again))


async def _is_out(page: Visitor) -> bool:
    await page.go("runs")
    return page.has("button", "Log in")


def main(arguments: list[str]) -> int:
    """Forge as often as asked, and say what came of it in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, served_with_login(Path(folder)) as server:
        report = asyncio.run(forge(server, given.rounds))
    sys.stdout.write(f"{len(report.through)} of {report.forged} forgeries went through {sorted(set(report.through))}\n")
    return int(bool(report.through))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
