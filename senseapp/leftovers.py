"""What one piece of work leaves for the next in this process: memory that it freed, and what took long to load."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from senseapp.process_settings import give_back_freed_memory


class Leftovers:
    """Keeps what is left until :meth:`clear`; before :meth:`keep`, and after it, nothing stays.

    A thing has one owner: it is left by whoever is done with it and will not touch it again, and gone once taken. For
    a process that does one piece of work at a time.
    """

    def __init__(self) -> None:
        self._keeps = False
        self._left: tuple[Hashable, Any] | None = None

    def keep(self) -> None:
        """Keep what is left from now on."""
        self._keeps = True

    def leave(self, key: Hashable, thing: object) -> None:
        """Keep ``thing`` for whoever asks for ``key`` next, in place of what was left before."""
        if self._keeps:
            self._left = key, thing

    def take(self, key: Hashable) -> Any:
        """Return what was left as ``key``, or None; either way nothing is left any more."""
        left, self._left = self._left, None
        return left[1] if left is not None and left[0] == key else None

    def drop(self) -> None:
        """Forget the thing; for who needs its room."""
        self._left = None

    def clear(self) -> None:
        """Give everything back to the system, freed memory included."""
        self._keeps, self._left = False, None
        give_back_freed_memory()


LEFTOVERS = Leftovers()
"""This process's own."""
