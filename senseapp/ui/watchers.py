"""How often pages that watch ask for news: the more people watch, the less often each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import streamlit as st

from senseapp.compat.streamlit_internals import session_id

_LOOKS_PER_SECOND = 5.0
_SHORTEST_SECONDS = 1.0
_GONE_SECONDS = 15.0


class Watchers:
    """Who looked lately; safe to use from any thread.

    All together look about five times a second at most: each look costs a few hundredths of a second of the processor
    that also measures.

    Args:
        clock: seconds that never move back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked: dict[str, float] = {}

    def look(self, who: str) -> float:
        """Count a look of ``who``, and return the seconds until the next."""
        now = self._clock()
        with self._lock:
            self._looked[who] = now
            self._looked = {one: then for one, then in self._looked.items() if now - then < _GONE_SECONDS}
            return max(_SHORTEST_SECONDS, len(self._looked) / _LOOKS_PER_SECOND)


@st.cache_resource(show_spinner=False)
def _watchers() -> Watchers:
    return Watchers()


def seconds_to_next_look() -> float:
    """Count a look of this page, and return after how many seconds it should look again."""
    return _watchers().look(session_id())
