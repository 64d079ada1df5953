"""Lines of the tables that ``benchmarks.real`` and ``benchmarks.deploy`` print and record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.results import machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A claim about the product, what was measured of it, and whether it holds.

    Attributes:
        what: was measured, in a few words.
        wanted: in the reader's words and units.
        found: likewise.
        holds: whether what was found is what is wanted.
    """

    what: str
    wanted: str
    found: str
    holds: bool

    @property
    def line(self) -> str:
        """The row in Markdown."""
        return f"| {self.what} | {self.wanted} | {self.found} | {'yes' if self.holds else 'no'} |"


HEAD = ("| what | wanted | found | holds |", "|---|---|---|---|")


def table(rows: Sequence[Row]) -> list[str]:
    """Return the rows as lines of Markdown."""
    return [*HEAD, *(row.line for row in rows), "", machine()]
