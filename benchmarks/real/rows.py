"""Rows of the tables of claims, of ``benchmarks.real``, ``deploy``, ``adapt`` and ``delivered``."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results import keep


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

    def keep(self, table: str) -> None:
        """Print it, and put it into a table of the results."""
        cells = {"what": self.what, "wanted": self.wanted, "found": self.found}
        keep(table, {**cells, "holds": "yes" if self.holds else "no"})
