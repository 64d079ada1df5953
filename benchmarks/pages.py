"""How long the results of a large run take to come, and to answer a click, in a browser.

    python -m benchmarks.pages [ROUNDS]

A made-up run of 300 layers at 10 levels, a server of its own, Chromium. A page has come when the bars of its first
chart have been painted; a click is answered when the last thing that it changes on the page has changed. Browser and
server share this machine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chromium import Browser, Tab, browser
from benchmarks.results import keep
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.leaderboard import headline
from senseapp.server.settings import LOCAL_OWNER
from senseapp.store.run_store import RunStore
from soak.served import served
from tests.pages.records import result

LAYERS = tuple(f"layers.{index // 30}.blocks.{index // 3 % 10}.conv{index % 3 + 1}" for index in range(300))
LEVELS = tuple(round(0.05 + 0.1 * index, 2) for index in range(10))
READY_SECONDS = 20.0  # in which a server that was just started loads its engine
STILL_MILLISECONDS = 700  # without a change of the page, after which nothing more will come
WANTED = {"page": 2.0, "click": 0.5}

BARS = "[data-testid=stMain] svg path[aria-roledescription=bar]"
CELLS = "[data-testid=stMain] [data-testid=stVegaLiteChart] canvas"  # so many are painted on one
WATCH = f"""
window.answer = {{}};
const painted = new MutationObserver(() => {{
    if (!document.querySelector('{BARS}')) return;
    painted.disconnect();
    requestAnimationFrame(() => setTimeout(() => {{ answer.painted = performance.now(); }}));
}});
painted.observe(document, {{subtree: true, childList: true}});
const counts = change => {{
    const place = change.target.nodeType === 1 ? change.target : change.target.parentElement;
    return place && place !== document.body && !place.closest('[data-testid=data-grid-canvas], .vg-tooltip');
}};
window.watch = event => {{
    answer.asked = answer.changed = undefined;
    addEventListener(event, () => {{ answer.asked = performance.now(); }}, {{capture: true, once: true}});
    window.changes?.disconnect();
    window.changes = new MutationObserver(list => {{
        if (answer.asked && list.some(counts)) answer.changed = performance.now();
    }});
    changes.observe(document.body, {{subtree: true, childList: true, attributes: true, characterData: true}});
}};
window.answered = async () => {{
    while (!answer.changed || performance.now() - answer.changed < {STILL_MILLISECONDS})
        await new Promise(later => setTimeout(later, 20));
    return (answer.changed - answer.asked) / 1000;
}};
"""


@dataclass
class Answers:
    """Seconds of one kind of question, in the order in which it was asked."""

    what: str
    wanted: float
    seconds: list[float] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """Return it as a row of the results; *first* is on a server that nobody has visited."""
        figures = {"first": self.seconds[0], "median": statistics.median(self.seconds), "most": max(self.seconds)}
        shown = {name: f"{seconds:.2f}" for name, seconds in figures.items()}
        return {"what": self.what, "wanted": f"{self.wanted:g}", **shown, "times": len(self.seconds)}


def opened(tab: Tab, url: str) -> float:
    """Return the seconds from the address to the first chart."""
    tab.open(url)
    return float(tab.wait_for("window.answer?.painted")) / 1000


def asked(tab: Tab, act: Callable[[], None], event: str = "click") -> float:
    """Return the seconds from what ``act`` does to the last change that it brings."""
    tab.value(f"watch('{event}')")
    act()
    return float(tab.value("answered()"))


def shown(selector: str, place: int = 0) -> str:
    """Return the expression of one of the elements that can be seen."""
    return f"[...document.querySelectorAll('{selector}')].filter(one => one.getBoundingClientRect().width)[{place}]"


def explore(tab: Tab, note: Callable[[str, float], None]) -> None:
    """Click through the views of a run, and note how long each answer took."""

    def click(what: str, element: str, down: float = 0.5) -> None:
        note(what, asked(tab, lambda: tab.click(element, down)))

    def open_view(name: str) -> None:
        click(f"tab {name}", f"[...document.querySelectorAll('[role=tab]')].find(one => one.innerText === '{name}')")

    def press(what: str, key: str, code: int) -> None:
        note(what, asked(tab, lambda: tab.press(key, code), "keydown"))

    open_view("Curves")
    open_view("Heat map")
    for down in (0.6, 0.8):
        click("a cell of the heat map", shown(CELLS), down)
    for name in ("Network", "Table", "Layers"):
        open_view(name)
    for place in (2, 5):
        click("a bar", shown(BARS, place))
    tab.value("document.querySelector('[data-testid=stMain] input[type=range]').focus()")
    press("another level", "ArrowRight", 39)
    open_view("Curves")
    tab.click("document.querySelector('[aria-label=Search]')")
    tab.write("blocks.7")
    press("a filter of the curves", "Enter", 13)


def visits(url: str, rounds: int, folder: Path) -> list[Answers]:
    """Return how long everything took in ``rounds`` browsers."""
    found: dict[str, Answers] = {}

    def note(what: str, seconds: float) -> None:
        wanted = WANTED["page" if what.startswith("page") else "click"]
        found.setdefault(what, Answers(what, wanted)).seconds.append(seconds)
        print(f"{what}: {seconds:.2f} s", flush=True)

    def visit(visitor: Browser, what: str) -> None:
        with visitor.tab(WATCH) as tab:
            note(f"page, {what}", opened(tab, url))
            tab.value(f"new Promise(later => setTimeout(later, {2 * STILL_MILLISECONDS}))")
            if what == "empty cache":
                note("page, browser that knows the app", opened(tab, url))
                tab.value(f"new Promise(later => setTimeout(later, {2 * STILL_MILLISECONDS}))")
                explore(tab, note)

    for index in range(rounds):
        with browser(folder / f"profile{index}") as visitor:
            visit(visitor, "browser just started")
            visit(visitor, "empty cache")
    return list(found.values())


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
    """Visit a large run, and keep the seconds of each kind of answer."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_id = large_run(folder / "home")
        with served(folder / "home") as server:
            time.sleep(READY_SECONDS)
            found = visits(f"{server.url}/results?run={run_id}", rounds, folder)
    for answers in found:
        keep("pages", answers.row())


if __name__ == "__main__":
    main()
