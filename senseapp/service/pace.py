"""How often one person may ask for what takes time or space, so that nobody keeps the server from the others."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from senseapp.errors import RateLimited

Action = Literal["runs", "jobs on runs", "uploads"]

_WINDOW_SECONDS = 60.0


class RateLimiter:
    """Counts what each person asked for in the last minute; safe to use from any thread.

    Args:
        per_minute: how often each person may ask for each thing.
        clock: seconds that never move back.
    """

    def __init__(self, per_minute: dict[Action, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, Action], deque[float]] = {}

    def count(self, owner: str, action: Action) -> None:
        """Count one more ``action`` of ``owner``.

        Raises:
            RateLimited: there were too many in the last minute; this one is not counted.
        """
        now, most = self._clock(), self._per_minute[action]
        with self._lock:
            self._forget(now - _WINDOW_SECONDS)
            times = self._asked.setdefault((owner, action), deque())
            if len(times) >= most:
                wait = max(1, round(times[0] + _WINDOW_SECONDS - now))
                raise RateLimited(f"Up to {most} {action} a minute may be started here. Try again in {wait} seconds.")
            times.append(now)

    def _forget(self, before: float) -> None:
        for key, times in list(self._asked.items()):
            while times and times[0] <= before:
                times.popleft()
            if not times:
                del self._asked[key]
