"""States of widgets that no page sends: of every wrong type, and extreme ones of the right type.

Run as ``python -m soak.forged_states``: a visitor who speaks Streamlit's protocol says each of them of each
widget of each page of a finished run. Exits with 0 if each session goes on, or its connection is closed.
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import websockets
from streamlit.proto.WidgetStates_pb2 import WidgetState

from soak.crowd import start_run, time_run
from soak.served import served
from soak.two_people import widgets_of
from soak.visitor import PageBroke, Visitor

PLACES = ("", "results", "schedule", "compare", "runs", "check")
_ANSWER_SECONDS = 20.0
_PRESSED = ("button", "download_button", "form_submit_button")
_LISTS = {
    "double_array_value": ([math.nan], [1e300], [-1.0], [], [1.0, 2.0, 3.0], [math.nan, math.nan]),
    "int_array_value": ([-1], [10**9], [0, 0, 0], [2**62]),
    "string_array_value": (["forged"], [""], ["a", "b"]),
}
_VALUES: Sequence[tuple[str, object]] = (
    *(("bool_value", True), ("trigger_value", True), ("bytes_value", b"\xff")),
    *(("double_value", each) for each in (math.nan, 1e300, -5.5, math.inf)),
    *(("int_value", each) for each in (2**62, -1, 10**9)),
    *(("string_value", each) for each in ("\x00", "forged", "../" * 20, "9" * 300, "[", "null", '{"selection": 3}')),
    ("json_value", '{"edited_rows": {"0": {"x": "NaN"}, "-5": {"a": 1}}, "added_rows": [], "deleted_rows": [9]}'),
)


def states(widget_id: str) -> Iterator[WidgetState]:
    """Yield what may be said of a widget."""
    yield WidgetState(id=widget_id)
    for kind, value in _VALUES:
        yield WidgetState(id=widget_id, **{kind: value})
    for kind, lists in _LISTS.items():
        for values in lists:
            state = WidgetState(id=widget_id)
            getattr(state, kind).data.extend(values)
            yield state


async def goes_on(url: str, place: str, query: str, state: WidgetState) -> bool:
    """Return whether a session answers after it said ``state``."""
    try:
        async with Visitor(url, place, query) as page:
            with suppress(PageBroke):
                await page.say(state)
            await asyncio.wait_for(page.again(), _ANSWER_SECONDS)
    except websockets.ConnectionClosed:  # what is far too large closes it
        return True
    except (PageBroke, TimeoutError):
        return False
    return True


async def forge(url: str) -> tuple[int, list[str]]:
    """Say every state of every widget; return how many there were, and those after which a session was stuck."""
    async with Visitor(url) as visitor:
        query = f"run={await start_run(visitor, images=8, seed=0)}"
        await time_run(visitor)
    told, stuck = 0, []
    for place in PLACES:
        async with Visitor(url, place, query) as page:
            widgets = widgets_of(page)[0]
        for widget_id, kind in widgets:
            for state in states(widget_id) if kind not in _PRESSED else ():
                told += 1
                if not await goes_on(url, place, query, state):
                    stuck.append(f"{kind} on {place}: {state.WhichOneof('value')}")
    return told, stuck


def main() -> int:
    """Serve the app, and say what came of it."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as server:
        told, stuck = asyncio.run(forge(server.url))
    sys.stdout.write(f"{told} forged states, {len(stuck)} sessions stuck {sorted(set(stuck))}\n")
    return int(bool(stuck))


if __name__ == "__main__":
    sys.exit(main())
