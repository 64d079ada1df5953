"""Files that browsers send: whose they are, where they lie, and when nobody wants them any more."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from senseapp.service import Service

_KEPT_SECONDS = 600.0
"""How long files outlive their session's connection: longer than Streamlit keeps a session for its browser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One file that has come, or that was refused.

    Attributes:
        path: where it lies; None if it was refused.
        refused: why, in one sentence.
    """

    path: Path | None = None
    refused: str = ""


@dataclass(slots=True)
class _Desk:
    """Where the files of one browser session arrive."""

    service: Service
    seen: float
    waiting: dict[str, Arrival] = field(default_factory=dict)
    taken: list[Path] = field(default_factory=list)

    def close(self) -> None:
        for arrival in self.waiting.values():
            self.discard(arrival)
        for path in self.taken:
            self.service.inputs.discard_upload(path)

    def discard(self, arrival: Arrival | None) -> None:
        if arrival is not None and arrival.path is not None:
            self.service.inputs.discard_upload(arrival.path)


class Arrivals:
    """Files on their way from the network to a page, by session and file; safe to use from any thread.

    A session gets a desk, and with it the right to send files, when a page shows it a field for them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._desks: dict[str, _Desk] = {}

    def expect(self, session_id: str, service: Service) -> None:
        """Let ``session_id`` send files, which belong to the person of ``service``."""
        with self._lock:
            if session_id not in self._desks:
                self._desks[session_id] = _Desk(service, self._clock())

    def service_of(self, session_id: str) -> Service | None:
        """Return whose files ``session_id`` sends; None if it was not asked for any."""
        with self._lock:
            desk = self._desks.get(session_id)
        return desk.service if desk is not None else None

    def keep(self, session_id: str, file_id: str, arrival: Arrival, service: Service) -> None:
        """Hold a file of the person of ``service`` until the page takes it, or until the session has ended."""
        with self._lock:
            desk = self._desks.setdefault(session_id, _Desk(service, self._clock()))
            before, desk.waiting[file_id] = desk.waiting.get(file_id), arrival
        desk.discard(before)

    def take(self, session_id: str, file_id: str) -> Arrival | None:
        """Hand a file to its page; it stays until the session ends or, if a run reads it, with the run."""
        with self._lock:
            desk = self._desks.get(session_id)
            arrival = desk.waiting.pop(file_id, None) if desk is not None else None
            if desk is not None and arrival is not None and arrival.path is not None:
                desk.taken.append(arrival.path)
        return arrival

    def drop(self, session_id: str, file_id: str) -> None:
        """Remove a file that the person took back before its page took it."""
        with self._lock:
            desk = self._desks.get(session_id)
            arrival = desk.waiting.pop(file_id, None) if desk is not None else None
        if desk is not None:
            desk.discard(arrival)

    def close_ended(self, is_connected: Callable[[str], bool]) -> None:
        """Close the desks of sessions that have been gone for a while, and remove their files."""
        now, ended = self._clock(), []
        with self._lock:
            for session_id, desk in list(self._desks.items()):
                if is_connected(session_id):
                    desk.seen = now
                elif now - desk.seen > _KEPT_SECONDS:
                    ended.append(self._desks.pop(session_id))
        for desk in ended:
            desk.close()


@functools.cache
def arrivals() -> Arrivals:
    """Return this process's arrivals: pages and the network meet here."""
    return Arrivals()
