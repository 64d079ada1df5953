"""What a proof tells while it works; being told is also where its teller may stop it, by raising."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _silent(_sentence: str) -> None:
    """Say nothing."""


@dataclass(slots=True)
class Telling:
    """Says which step is made and, within a step over many images, how far it is.

    Attributes:
        tell: takes one sentence at a time.
        step: the step that is made now.
    """

    tell: Callable[[str], None] = _silent
    step: str = ""

    def __call__(self, step: str) -> None:
        """A step begins."""
        self.step = step
        self.tell(step)

    def images(self, done: int, total: int) -> None:
        """Say how many of the images of this step are through."""
        self.tell(f"{self.step or 'Measuring'} · {done} of {total} images")
