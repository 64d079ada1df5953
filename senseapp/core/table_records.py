"""Numbers and named columns of tables from :mod:`senseapp.core.tables`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from senseapp.core.foreign_values import number
from senseapp.core.tables import MOST_BYTES, Table, TableError, read_table
from senseapp.core.texts import listed, plain_cell, plural

_NUMERIC = re.compile(r"[+-]?\.?\d[\d.]*(?:[eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """One row of a table whose columns have names."""

    line: int
    cells: Mapping[str, str]

    def number(self, column: str, *, least: float = -math.inf, most: float = math.inf) -> float:
        """Return the number in ``column``, with a decimal point; BadValue if there is none."""
        return number(self.cells[column], column, least=least, most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The named columns of a table, in any order.

    Attributes:
        has_header: False if the first line holds values, so that the columns are known only by their order.
        notes: sentences on what was detected, and on columns that are not read.
    """

    rows: tuple[TableRecord, ...]
    has_header: bool = True
    notes: tuple[str, ...] = ()


def column_key(text: str) -> str:
    """Return a column's name for comparisons: without case, spaces and punctuation.

    >>> column_key("Top-1"), column_key("predicted damage")
    ('top1', 'predicteddamage')
    """
    return re.sub(r"[\W_]+", "", text.casefold())


def read_records(
    content: bytes | str, columns: Sequence[str], *, numbers: Sequence[str], most_bytes: int = MOST_BYTES
) -> Records:
    """Read a table whose header names ``columns``, in any order, among others that are ignored.

    Without a header, the columns must be exactly these in this order. ``numbers`` are those with numbers.

    Raises:
        TableError: see :func:`~senseapp.core.tables.read_table`; a column is missing or repeated.
    """
    wanted = {column_key(name): name for name in columns}
    table = read_table(
        content,
        score=lambda first: len(wanted.keys() & _keys(first)) or _is_bare(first, columns, numbers),
        most_bytes=most_bytes,
    )
    has_header = bool(wanted.keys() & _keys(table)) or not _is_bare(table, columns, numbers)
    places = _places(table, wanted) if has_header else {name: place for place, name in enumerate(columns)}
    rows, lines = table.rows[has_header:], table.lines[has_header:]
    return Records(
        rows=tuple(
            TableRecord(line=line, cells={name: plain_cell(row[place]) for name, place in places.items()})
            for line, row in zip(lines, rows, strict=True)
        ),
        has_header=has_header,
        notes=(*table.notes, *_notes(table, places, has_header)),
    )


def _keys(table: Table) -> list[str]:
    return [column_key(cell) for cell in table.rows[0]]


def _is_bare(table: Table, columns: Sequence[str], numbers: Sequence[str]) -> bool:
    """Return whether the first row holds values of ``columns``: numbers exactly where numbers are expected."""
    first = table.rows[0]
    return len(first) == len(columns) and all(
        bool(_NUMERIC.fullmatch(cell)) == (name in numbers) for cell, name in zip(first, columns, strict=True)
    )


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


def _notes(table: Table, places: Mapping[str, int], has_header: bool) -> Iterator[str]:
    if not has_header:
        yield f"It has no header: its columns were taken as {', '.join(places)}."
    surplus = [name for place, name in enumerate(table.rows[0]) if name and place not in places.values()]
    if surplus:
        yield f"{plural(len(surplus), 'column')} of it not read: {listed(surplus)}."
