"""How long a new visitor of a fresh server waits for a file, and what the page says of it, for each demo.

    python -m benchmarks.answer [ROUNDS] [FOLDER] [--load BUSY_PROCESSES] [--demos digits,photographs,detector]

Each round is a new home, a server that was just started, and a browser of its own: the page opens, somebody reads it
for ten seconds, and presses the demo's button; nothing else is touched or scrolled. Noted are the promise before Run
(without one, the first time left), the first chart, the first file, the end of the bar with the
file, and how long the bar stood still at most. A picture of each moment is written to FOLDER. Browser and server share
this machine, with ``--load`` also with so many processes that compute.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chromium import SIZE, Tab, browser
from benchmarks.pages import BARS
from benchmarks.results import keep
from soak.served import served

PATIENCE_SECONDS = 1800.0
READING_SECONDS = 10.0
_LOOK_SECONDS = 0.25
_BUTTONS = {"digits": "analyze-run", "photographs": "analyze-photographs", "detector": "analyze-detector"}
_LOOK = f"""(() => {{
    const bar = document.querySelector('[data-testid=stProgress]');
    const text = document.querySelector('[data-testid=stMain]')?.innerText || '';
    const file = [...document.querySelectorAll('button')].find(one => one.innerText.includes('Get the '));
    const box = file?.getBoundingClientRect();
    return {{
        bar: bar && (bar.innerText.match(/[\\d.]+(?= %)/) || [''])[0],
        left: (text.match(/(?:about )?([^·\\n]*?) left/) || ['', ''])[1],
        chart: !!document.querySelector('{BARS}'),
        file: !!box && box.top >= 0 && box.bottom <= {SIZE["height"]},
        note: document.querySelector('[data-testid=stMain] [data-testid=stAlert]')?.innerText || '',
    }};
}})()"""
_PROMISES = {
    "digits": "(document.body.innerText.match(/: (?:about )?([^:]*?) until the file/) || ['', ''])[1]",
    **{
        demo: f"document.querySelector('.st-key-{_BUTTONS[demo]} + * [data-testid=stCaptionContainer]')?.innerText"
        for demo in ("photographs", "detector")
    },
}
_PLAIN = "performance.setResourceTimingBufferSize(1000)"  # a visitor's pages run no script of ours


def seconds_in(text: str) -> float | None:
    """Return the seconds that words say: ``2 min 10 s``, ``a few seconds``; None for none."""
    if "few seconds" in text:
        return 3.0
    units = {"h": 3600, "min": 60, "s": 1}
    found = re.findall(r"([\d.]+) (h|min|s)\b", text)
    return sum(float(number) * units[unit] for number, unit in found) if found else None


@dataclass(kw_only=True)
class Seen:
    """What one visitor saw: moments in seconds since Run, the promise, and the longest stand-still of the bar."""

    promise: float | None = None
    stood: float = 0.0
    stood_at: str = ""
    moments: dict[str, float] = field(default_factory=dict)


def visit(tab: Tab, url: str, demo: str, pictures: Path) -> Seen:
    """Open the app, press the demo's button after reading, and look until the bar is gone and the file is there."""
    button = f"document.querySelector('.st-key-{_BUTTONS[demo]} button')"
    tab.open(url)
    tab.wait_for(f"(() => {{ const one = {button}; return one && !one.disabled }})()", PATIENCE_SECONDS)
    tab.wait_for("[...document.images].every(one => one.complete)", PATIENCE_SECONDS)  # they move what is below them
    time.sleep(READING_SECONDS)
    seen = Seen(promise=seconds_in(tab.value(_PROMISES[demo]) or ""))
    tab.click(button)
    started = changed = time.monotonic()
    shown, had_bar = "", False

    def note(moment: str) -> None:
        if moment not in seen.moments:
            seen.moments[moment] = time.monotonic() - started
            tab.screenshot(pictures / f"{demo}-{moment.replace(' ', '-')}.png")
            print(f"{demo}: {moment} {seen.moments[moment]:.1f} s", flush=True)

    while time.monotonic() < started + PATIENCE_SECONDS:
        look: dict[str, Any] = tab.value(_LOOK)
        now = time.monotonic()
        if look["bar"] is not None or not had_bar:
            had_bar |= look["bar"] is not None
            if now - changed > seen.stood:
                seen.stood, seen.stood_at = now - changed, f"{shown or 0} %"
            if look["bar"] is not None and look["bar"] != shown:
                shown, changed = look["bar"], now
        if seen.promise is None and look["left"]:
            seen.promise = seconds_in(look["left"])
        if look["chart"]:
            note("first chart")
        if look["file"]:
            note("first file")
        if had_bar and look["bar"] is None and (look["file"] or look["note"]):
            note("all files")
            print(f"{demo}: promised {seen.promise} s", flush=True)
            return seen
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"{demo}: not finished in {PATIENCE_SECONDS:g} s")


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes computing inside the block."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def row(demo: str, load: int, seen: Sequence[Seen]) -> dict[str, object]:
    """Return what was seen of a demo: seconds since Run, medians over its rounds."""

    def median(values: Iterator[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{statistics.median(known):.1f}" if known else "none"

    kept = sum(each.promise is not None and abs(each.promise / each.moments["all files"] - 1) <= 0.3 for each in seen)
    worst = max(seen, key=lambda each: each.stood)
    return {
        "demo": demo,
        "busy processes beside it": load,
        "first chart": median(each.moments.get("first chart") for each in seen),
        "first file": median(each.moments.get("first file") for each in seen),
        "promise": median(each.promise for each in seen),
        "all files": median(each.moments.get("all files") for each in seen),
        "promises within 30 %": f"{kept} of {len(seen)}",
        "longest stand-still": f"{worst.stood:.1f}, at {worst.stood_at}",
    }


def main() -> None:
    """Visit each demo in turn, and keep a row of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--demos", default="digits,photographs,detector")
    asked = parser.parse_args()
    found: dict[str, list[Seen]] = {demo: [] for demo in asked.demos.split(",")}
    with tempfile.TemporaryDirectory() as name, load(asked.load):
        pictures = asked.folder or Path(name)
        pictures.mkdir(parents=True, exist_ok=True)
        for index in range(asked.rounds):
            for demo, seen in found.items():
                folder = Path(name) / f"{demo} {index}"
                with (
                    served(folder / "home") as server,
                    browser(folder / "profile") as visitor,
                    visitor.tab(_PLAIN) as tab,
                ):
                    seen.append(visit(tab, server.url, demo, pictures))
    for demo, seen in found.items():
        keep("answer", row(demo, asked.load, seen), named_by=2)


if __name__ == "__main__":
    main()
