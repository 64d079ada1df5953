"""How long the first page of the results of a large run takes to come: ``python -m benchmarks.pages [ROUNDS]``.

A made-up run of 300 layers at 10 levels, a server of its own, Chromium. A page has come when the bars of its first
chart have been painted. Browser and server share this machine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.chromium import Tab, browser
from benchmarks.results import keep
from senseapp.records.headline import headline
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.settings import LOCAL_OWNER
from senseapp.store.run_store import RunStore
from soak.served import served
from tests.pages.records import result

LAYERS = tuple(f"layers.{index // 30}.blocks.{index // 3 % 10}.conv{index % 3 + 1}" for index in range(300))
LEVELS = tuple(round(0.05 + 0.1 * index, 2) for index in range(10))
READY_SECONDS = 20.0  # in which a server that was just started loads its engine
STILL_SECONDS = 1.4  # between two pages of a browser
WANTED_SECONDS = 2.0

BARS = "[data-testid=stMain] svg path[aria-roledescription=bar]"
WATCH = f"""
window.answer = {{}};
const painted = new MutationObserver(() => {{
    if (!document.querySelector('{BARS}')) return;
    painted.disconnect();
    requestAnimationFrame(() => setTimeout(() => {{ answer.painted = performance.now(); }}));
}});
painted.observe(document, {{subtree: true, childList: true}});
"""


def opened(tab: Tab, url: str) -> float:
    """Return the seconds from the address to the first chart."""
    tab.open(url)
    seconds = float(tab.wait_for("window.answer?.painted")) / 1000
    time.sleep(STILL_SECONDS)
    return seconds


def visits(url: str, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of each kind of visit, in ``rounds`` browsers."""
    found = defaultdict[str, list[float]](list)
    for index in range(rounds):
        with browser(folder / f"profile{index}") as visitor:
            with visitor.tab(WATCH) as tab:
                found["page, browser just started"].append(opened(tab, url))
            with visitor.tab(WATCH) as tab:
                found["page, empty cache"].append(opened(tab, url))
                found["page, browser that knows the app"].append(opened(tab, url))
    return found


def large_run(home: Path) -> str:
    """Store the run and return its id."""
    spec = RunSpec(sensitivity=SensitivitySpec(levels=LEVELS))
    made_up = result(spec, names=LAYERS)
    store = RunStore(home)
    record = store.create(spec, owner=LOCAL_OWNER, title="large")
    store.folder(record.run_id).save_result(made_up)
    store.update(record.run_id, headline=headline(made_up))
    store.set_state(record.run_id, RunState.DONE)
    return record.run_id


def main() -> None:
    """Visit a large run, and keep the seconds of each kind of visit."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_id = large_run(folder / "home")
        with served(folder / "home") as server:
            time.sleep(READY_SECONDS)
            found = visits(f"{server.url}/results?run={run_id}", rounds, folder)
    for what, seconds in found.items():
        # *first* is on a server that nobody has visited
        figures = {"first": seconds[0], "median": statistics.median(seconds), "most": max(seconds)}
        shown = {name: f"{each:.2f}" for name, each in figures.items()}
        keep("pages", {"what": what, "wanted": f"{WANTED_SECONDS:g}", **shown, "times": len(seconds)})


if __name__ == "__main__":
    main()
