"""Numbers and named columns of tables from :mod:`senseapp.core.tables`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from senseapp.core.foreign_values import number
from senseapp.core.tables import MOST_BYTES, Table, TableError, read_table
from senseapp.core.texts import listed, plain_cell, plural

_COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """One row of a table whose columns have names; ``decimal`` is the decimal mark of its numbers."""

    line: int
    cells: Mapping[str, str]
    decimal: str = "."

    def number(self, column: str, *, least: float = -math.inf, most: float = math.inf) -> float:
        """Return the number in ``column``; BadValue if there is none."""
        return number(self.cells[column].replace(self.decimal, "."), column, least=least, most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The named columns of a table, in any order; ``notes`` are sentences on what was detected and is not read."""

    rows: tuple[TableRecord, ...]
    notes: tuple[str, ...] = ()


def column_key(text: str) -> str:
    """Return a column's name for comparisons: without case, spaces and punctuation.

    >>> column_key("Top-1"), column_key("predicted damage")
    ('top1', 'predicteddamage')
    """
    return re.sub(r"[\W_]+", "", text.casefold())


def read_records(content: bytes | str, columns: Sequence[str], *, most_bytes: int = MOST_BYTES) -> Records:
    """Read a table whose first line names ``columns``, in any order, among others that are ignored.

    Raises:
        TableError: see :func:`~senseapp.core.tables.read_table`; a column is missing or repeated.
    """
    wanted = {column_key(name): name for name in columns}
    table = read_table(content, score=lambda first: len(wanted.keys() & _keys(first)), most_bytes=most_bytes)
    places = _places(table, wanted)
    rows = [{name: plain_cell(row[place]) for name, place in places.items()} for row in table.rows[1:]]
    decimal = (
        "," if table.delimiter == ";" and any(map(_COMMA_NUMBER.fullmatch, chain(*map(dict.values, rows)))) else "."
    )
    surplus = [name for place, name in enumerate(table.rows[0]) if name and place not in places.values()]
    unread = (f"{plural(len(surplus), 'column')} of it not read: {listed(surplus)}.",) if surplus else ()
    commas = ("Commas in its numbers are decimal marks.",) if decimal == "," else ()
    return Records(
        rows=tuple(
            TableRecord(line=line, cells=cells, decimal=decimal)
            for line, cells in zip(table.lines[1:], rows, strict=True)
        ),
        notes=(*table.notes, *commas, *unread),
    )


def _keys(table: Table) -> list[str]:
    return [column_key(cell) for cell in table.rows[0]]


def _places(table: Table, wanted: Mapping[str, str]) -> dict[str, int]:
    """Return the index of each column whose key is in ``wanted``, by its name."""
    keys = _keys(table)
    missing = [name for key, name in wanted.items() if key not in keys]
    if missing:
        raise TableError(
            f"Its first line must name the columns {','.join(wanted.values())}; it is {table.quoted(0)!r} and lacks "
            f"{', '.join(missing)}."
        )
    repeated = next((name for key, name in wanted.items() if keys.count(key) > 1), "")
    if repeated:
        raise TableError(f"Its first line names the column {repeated} more than once: {table.quoted(0)!r}.")
    return {name: keys.index(key) for key, name in wanted.items()}
