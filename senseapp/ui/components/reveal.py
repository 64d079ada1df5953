"""Bring the picked row of a long chart into view."""

from __future__ import annotations

from senseapp.ui.components.script import run_script
from senseapp.ui.inline_scripts import REVEAL


def reveal(frame: str, place: float) -> None:
    """Scroll a container so that ``place`` can be seen, where it cannot; without scripts it stays where it is.

    Args:
        frame: key of a container with a height; letters, digits, ``_`` and ``-``.
        place: 0 for its top to 1 for its bottom.
    """
    wish = f'<div class="reveal" data-frame="{frame}" data-place="{place:.4f}"></div>'
    run_script(REVEAL, beside=wish)
