"""Numbers and named columns of tables from :mod:`senseapp.core.tables`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from senseapp.core.foreign_values import number
from senseapp.core.tables import MOST_BYTES, Table, TableError, read_table
from senseapp.core.texts import listed, plain_cell, plural, printable

_NUMERIC = re.compile(r"[+-]?[.,]*\d[\d.,]*(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}", re.ASCII)
"""``1,250``: 1.25 or 1250."""


def decimal_mark(cells: Iterable[str], delimiter: str) -> str:
    """Return the decimal mark, a point or a comma, of cells of which some are numbers.

    Raises:
        TableError: both marks occur, or the numbers are ambiguous: ``1,250`` alone may be 1250 too.
    """
    marked = [cell for cell in cells if ("." in cell or "," in cell) and _NUMERIC.fullmatch(cell)]
    commas = [cell for cell in marked if "," in cell]
    points = [cell for cell in marked if "." in cell]
    if not commas:
        return "."
    if points:
        raise TableError(
            f"Its numbers have decimal points and commas, {printable(points[0])!r} and {printable(commas[0])!r}. "
            "Write them with points, without marks for thousands."
        )
    if delimiter != ";" and all(_GROUPED.fullmatch(cell) for cell in commas):
        raise TableError(
            f"The comma in {printable(commas[0])!r} may be a decimal mark or one for thousands. "
            "Write the numbers with points, without marks for thousands."
        )
    return ","


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """One row of a table whose columns have names; ``decimal`` is the decimal mark of its numbers."""

    line: int
    cells: Mapping[str, str]
    decimal: str = "."

    def number(self, column: str, *, least: float = -math.inf, most: float = math.inf) -> float:
        """Return the number in ``column``; BadValue if there is none, or one with a mark for thousands."""
        cell = self.cells[column]
        return number(cell.replace(",", ".") if self.decimal == "," else cell, column, least=least, most=most)


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
        TableError: see :func:`~senseapp.core.tables.read_table` and :func:`decimal_mark`; a column is missing or
            repeated.
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
    numeric = [row[places[name]] for row in rows for name in numbers]
    decimal = decimal_mark(numeric, table.delimiter)
    return Records(
        rows=tuple(
            TableRecord(
                line=line, cells={name: plain_cell(row[place]) for name, place in places.items()}, decimal=decimal
            )
            for line, row in zip(lines, rows, strict=True)
        ),
        has_header=has_header,
        notes=(*table.notes, *_notes(table, places, has_header, decimal, numeric)),
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


def _notes(
    table: Table, places: Mapping[str, int], has_header: bool, decimal: str, numeric: Sequence[str]
) -> Iterator[str]:
    if not has_header:
        yield f"It has no header: its columns were taken as {', '.join(places)}."
    if decimal == ",":
        yield "Commas in its numbers are decimal marks."
    pointed = [cell for cell in numeric if "." in cell]
    if table.delimiter == ";" and pointed and all(map(_GROUPED.fullmatch, pointed)):
        yield f"Points in its numbers are decimal marks: {printable(pointed[0])} is not a number of thousands."
    surplus = [name for place, name in enumerate(table.rows[0]) if name and place not in places.values()]
    if surplus:
        yield f"{plural(len(surplus), 'column')} of it not read: {listed(surplus)}."
