"""How long a new visitor waits for a file that runs: from the address of a fresh server, for each demo.

    python -m benchmarks.answer [ROUNDS] [FOLDER]

Each round is a new home, a server that was just started, and a browser of its own: the page opens, the demo's button is
pressed as soon as it can be, or by somebody who has read the page for ten seconds, by which time the server has loaded
torch; and nothing else is touched or scrolled. A picture of each moment is written to FOLDER. Browser and server share
this machine; what other processes did meanwhile is said by its load, and by the processor's seconds that the server and
its job processes took themselves.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.chromium import SIZE, Tab, browser
from benchmarks.pages import BARS
from benchmarks.results import machine, write_section
from tests.soak.served import served

TITLE = "The answer: each demo from the address to a file that runs"
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """What somebody does.

    Attributes:
        title: name in the table.
        button: text of the button that is pressed.
        wanted: what is wanted of each moment, for the table.
        reading_seconds: how long the page is read before.
    """

    title: str
    button: str
    wanted: Mapping[str, str]
    reading_seconds: float = 0.0


_DIGITS = {"Run is pressed": "", "first chart": "3 after Run", "file that runs": "30 in all, 20 after Run"}
_PHOTOGRAPHS = {"Run is pressed": "", "first chart": "10 after Run", "file that runs": "90 in all"}
VISITORS = (
    Visitor(title="digits, pressed at once", button="Run", wanted=_DIGITS),
    Visitor(title="digits, after ten seconds of reading", button="Run", wanted=_DIGITS, reading_seconds=10),
    Visitor(title="photographs, pressed at once", button="Run on photographs", wanted=_PHOTOGRAPHS),
)

_FILE = f"""(() => {{
    const one = [...document.querySelectorAll('button')].find(one => one.innerText.includes('Get the '));
    const box = one?.getBoundingClientRect();
    return box && box.top >= 0 && box.bottom <= {SIZE["height"]} && one.innerText;
}})()"""
_PLAIN = "performance.setResourceTimingBufferSize(1000)"  # a visitor's pages run no script of ours


def visit(tab: Tab, url: str, note: Note, visitor: Visitor) -> None:
    """Open the app, press the demo's button after a while, and note each moment."""
    words = "one.innerText.trim().split(/\\s+/)"  # the first is the name of the button's icon
    button = f"[...document.querySelectorAll('button')].find(one => {words}.slice(1).join(' ') === '{visitor.button}')"
    tab.open(url)
    tab.wait_for(f"(() => {{ const one = {button}; return one && !one.disabled }})()", PATIENCE_SECONDS)
    tab.wait_for("[...document.images].every(one => one.complete)", PATIENCE_SECONDS)  # they move what is below them
    time.sleep(visitor.reading_seconds)
    note("Run is pressed")
    tab.click(button)
    tab.wait_for(f"!!document.querySelector('{BARS}')", PATIENCE_SECONDS)
    note("first chart")
    print(tab.wait_for(_FILE, PATIENCE_SECONDS).split("\n")[-1])
    note("file that runs")


class Note:
    """Notes seconds since it was made, processor seconds of ``server`` and what it started, and a picture."""

    def __init__(self, tab: Tab, server: psutil.Process, pictures: Path) -> None:
        self._tab, self._server, self._pictures = tab, server, pictures
        self._start = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.processor: dict[str, float] = {}

    def __call__(self, moment: str) -> None:
        self.seconds[moment] = time.monotonic() - self._start
        times = [one.cpu_times() for one in (self._server, *self._server.children(recursive=True))]
        self.processor[moment] = sum(one.user + one.system for one in times)
        self._tab.screenshot(self._pictures / f"{moment.lower().replace(' ', '-')}.png")
        print(f"{moment}: {self.seconds[moment]:.1f} s, {self.processor[moment]:.1f} s of the processor", flush=True)


def one_round(folder: Path, pictures: Path, who: Visitor) -> Note:
    """Return what one new visitor saw."""
    with served(folder / "home") as server, browser(folder / "profile") as visitor, visitor.tab(_PLAIN) as tab:
        note = Note(tab, server.process, pictures)
        visit(tab, server.url, note, who)
        return note


def table(found: Mapping[str, Sequence[Note]], loads: Sequence[float]) -> list[str]:
    """Return the moments of each kind of visitor as lines of Markdown."""
    rounds = len(next(iter(found.values())))
    lines = [
        machine(),
        "",
        f"Seconds, medians of {rounds} rounds, in Chromium, which shares the cores with the server and with what made "
        f"a load of {statistics.median(loads):.1f} before (0 is an idle machine).",
        "",
        "| Run | moment | wanted | since the address | since Run | of the processor, so far |",
        "|---|---|---|---|---|---|",
    ]
    for visitor in VISITORS:
        notes = found[visitor.title]
        for moment, wanted in visitor.wanted.items():
            since, after = (
                statistics.median(note.seconds[moment] - start for note, start in zip(notes, starts, strict=True))
                for starts in ([0.0] * len(notes), [note.seconds["Run is pressed"] for note in notes])
            )
            processor = statistics.median(note.processor[moment] for note in notes)
            lines.append(f"| {visitor.title} | {moment} | {wanted} | {since:.1f} | {after:.1f} | {processor:.1f} |")
    return lines


def main() -> None:
    """Print the table, and write it."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 3
    found: dict[str, list[Note]] = {visitor.title: [] for visitor in VISITORS}
    loads = []
    with tempfile.TemporaryDirectory() as name:
        pictures = Path(sys.argv[2] if sys.argv[2:] else name)
        pictures.mkdir(parents=True, exist_ok=True)
        for index in range(rounds):
            for visitor in VISITORS:
                loads.append(os.getloadavg()[0])
                found[visitor.title].append(one_round(Path(name) / f"{visitor.title} {index}", pictures, visitor))
    lines = table(found, loads)
    print("\n".join(lines))
    write_section(TITLE, lines)


if __name__ == "__main__":
    main()
