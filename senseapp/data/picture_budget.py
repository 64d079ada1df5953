"""Memory shared by the threads that decode pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class PictureBudget:
    """Lets threads decode at the same time as long as their pictures have at most ``pixels`` together.

    A picture above that is decoded alone.
    """

    def __init__(self, pixels: int) -> None:
        self._total = self._free = pixels
        self._released = Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for ``pixels``, and keep it inside the block."""
        held = min(pixels, self._total)
        with self._released:
            self._released.wait_for(lambda: self._free >= held)
            self._free -= held
        try:
            yield
        finally:
            with self._released:
                self._free += held
                self._released.notify_all()
