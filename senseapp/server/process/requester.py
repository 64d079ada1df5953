"""Requesters of worker processes, and limits on the number of simultaneous requests.

A hostile file keeps its process busy until its time limit. So that others do not wait for it, each user has a few of
all slots, and a request ends once its page is closed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from senseapp.core.errors import Abandoned

_ASK_SECONDS = 0.25  # interval at which a waiting request checks whether its page is open


def _stays() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Origin of a request.

    Attributes:
        person: the user whose slots it takes.
        is_gone: returns whether the requesting page was closed.
    """

    person: str = ""
    is_gone: Callable[[], bool] = field(default=_stays)

    def check(self, subject: str) -> None:
        """Raise Abandoned once the requester is gone."""
        if self.is_gone():
            raise Abandoned(
                f"{subject} was not read to its end, as the page that needs it was closed. Open the page again."
            )


ANYBODY = Requester()
"""Never gone: the command line, and the server itself."""


class Slots:
    """Limits how many requests are answered at once, in total and per user; safe to use from any thread.

    Args:
        most: in total.
        most_each: per user. Users with fewer slots go first, then those who wait longer.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._changed = threading.Condition()
        self._held: Counter[str] = Counter()
        self._waiting: dict[int, str] = {}  # users by ticket, in order of arrival
        self._tickets = 0

    @contextmanager
    def hold(self, asker: Requester, subject: str) -> Iterator[None]:
        """Wait for a slot and hold it inside the block; Abandoned if the page of ``subject`` closes before."""
        self._take(asker, subject)
        try:
            yield
        finally:
            with self._changed:
                self._held[asker.person] -= 1
                self._held += Counter()  # drops those without any
                self._changed.notify_all()

    def _take(self, asker: Requester, subject: str) -> None:
        with self._changed:
            ticket = self._tickets = self._tickets + 1
            self._waiting[ticket] = asker.person
            try:
                while self._next() != ticket:
                    self._changed.wait(_ASK_SECONDS)
                    asker.check(subject)
                self._held[asker.person] += 1
            finally:
                del self._waiting[ticket]
                self._changed.notify_all()

    def _next(self) -> int | None:
        """Return the ticket that may go next; None while no waiting one has a slot."""
        if self._held.total() >= self._most:
            return None
        may_go = (item for item in self._waiting.items() if self._held[item[1]] < self._most_each)
        return min(may_go, key=lambda item: (self._held[item[1]], item[0]), default=(None, ""))[0]
