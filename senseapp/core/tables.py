"""Read delimited text: label tables, sensitivity tables, schedules, layer times and class maps.

Spreadsheets and languages write such files differently: the delimiter (comma, semicolon, tab, bar, spaces), quotes, the
order of columns. The :mod:`csv` module parses the cells; its sniffer, and so that of pandas, accepts letters as
delimiters. So the delimiter here is the one with which the lines have equally many cells, and callers score several
such readings by what they know (names of columns, of pictures). Files are UTF-8, UTF-16 with a byte-order mark, or
Windows-1252; that, and a delimiter other than a comma, is noted in :attr:`Table.notes`. Files may be hostile: their
bytes, rows, columns and cells are limited, and a line that does not fit is an error that quotes it.
"""

import codecs
import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final, TypeAlias

from senseapp.core import foreign_values
from senseapp.core.registry import grouped
from senseapp.core.texts import listed, plain_cell, plural, printable

MOST_BYTES: Final = 64_000_000  # the 1.28 million training files of ImageNet in rows of 50 bytes
_MOST_CELLS = 5_000_000  # Python objects, about 60 bytes each
_MOST_COLUMNS = 20_000  # one for each label: Open Images V6 has 19,957
_LONGEST_LINE = 1_000_000  # the csv module holds a whole line, and quotes can join all that follow
_LAST_SPACE = "last space"
"""Only the last run of spaces separates: a list of pictures whose names contain spaces, ``my cat.jpg 3``."""
_DELIMITERS = (",", ";", "\t", "|", " ", _LAST_SPACE)
_DELIMITER_WORDS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces", _LAST_SPACE: "the last space"}
_SEPARATOR_LINE = re.compile(r"""^"?sep=[^"\r\n]"?\r?(?:\n|$)""", re.IGNORECASE)
"""A spreadsheet's first line, which names the delimiter: that of the other lines is found as always."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_WINDOWS = "cp1252"
_BINARY = {
    b"PK\x03\x04": "a workbook or zip",
    b"\xd0\xcf\x11\xe0": "a workbook",
    b"\x1f\x8b": "gzip",
    b"PAR1": "Parquet",
}
_COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?", re.ASCII)


class TableError(ValueError):
    """A text cannot be read as a table; one or two sentences, without the name of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The cells of a delimited text, without surrounding spaces.

    ``rows`` are all but blank ones and comments, ``# …``, padded to the length of the first, which may be a header;
    ``lines`` are those in the file, from 1, on which they end. ``notes`` say what was detected, if unusual.
    """

    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    delimiter: str
    notes: tuple[str, ...] = ()

    def quoted(self, index: int) -> str:
        """Return row ``index`` for use in a sentence."""
        return _quoted(self.rows[index], self.delimiter)


def read_table(
    content: bytes | str, *, score: Callable[[Table], float] = lambda first_rows: 0.0, most_bytes: int = MOST_BYTES
) -> Table:
    """Read ``content`` as a table of two or more columns.

    Of several delimiters that fit the lines, the one is used whose first rows have the highest ``score``, which says
    how far they agree with other knowledge; else the first of comma, semicolon, tab, bar, spaces, last space.
    TableError if it is too large, not text, empty, without a delimiter, or a line has more cells than the first.
    """
    text = _SEPARATOR_LINE.sub("", decoded_text(content, most_bytes))
    if not text.strip():
        raise TableError("It is empty.")
    lines = list(io.StringIO(text, newline=""))
    if long := next((number for number, line in enumerate(lines, start=1) if len(line) > _LONGEST_LINE), 0):
        raise TableError(f"Line {long} has more than {_LONGEST_LINE:,} letters, the most that are read.")
    first = {mark: _first_rows(lines, mark) for mark in _DELIMITERS}
    fitting = {mark: share for mark, rows in first.items() if (share := _share_fitting(rows)) >= 0.5}
    wide = (mark for mark, rows in first.items() if rows and len(rows[0][1]) > 1)
    mark = next(wide, _DELIMITERS[0])  # whose misfit is told where none fits
    if fitting:  # the first of equals
        mark = max(fitting, key=lambda each: (score(_table(first[each], each)), fitting[each]))
    table = _table(_bounded(_rows(lines, mark), mark), mark)
    if not fitting:
        raise TableError(
            "Neither commas, semicolons, tabs nor spaces separate its columns: "
            f"the first line is {_quoted(table.rows[0], ' ') if table.rows else ''!r}."
        )
    notes = [f"Its columns are separated by {_DELIMITER_WORDS[mark]}."] if mark in _DELIMITER_WORDS else []
    if isinstance(content, bytes) and _encoding(content) == _WINDOWS:
        notes.append("It is not UTF-8 and was read as Windows-1252: check letters with accents.")
    return replace(table, notes=tuple(notes))


def decoded_text(content: bytes | str, most_bytes: int = MOST_BYTES) -> str:
    """Return the text without its byte-order mark; TableError if it is larger than ``most_bytes``, or not text."""
    if len(content) > most_bytes:
        raise TableError(f"It has more than {most_bytes // 10**6} MB, the most that is read.")
    if isinstance(content, bytes):
        what = next((what for start, what in _BINARY.items() if content.startswith(start)), "")
        if what:
            raise TableError(f"It is {what}, not text. Save it as CSV in UTF-8.")
        try:
            content = content.decode(_encoding(content))
        except UnicodeDecodeError as error:
            raise TableError("It is not text in UTF-8. Save it as CSV in UTF-8.") from error
        if "\0" in content:
            raise TableError("It holds zero bytes, so it is not text. Save it as CSV in UTF-8.")
    return content.removeprefix("\ufeff")


def _encoding(content: bytes) -> str:
    """Return the encoding of a text: UTF-8, UTF-16 with a byte-order mark, else that of Western Windows."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return "utf-16" if content.startswith(_UTF_16) else _WINDOWS
    return "utf-8"


_Row: TypeAlias = tuple[int, Sequence[str]]


def _rows(lines: Sequence[str], mark: str) -> Iterator[_Row]:
    """Yield the line number and the stripped cells of each row that is not only a comment; TableError if none."""
    reader = csv.reader(lines, delimiter=" " if mark == _LAST_SPACE else mark, skipinitialspace=True, strict=True)
    at_last_space = ((number, line.strip().rsplit(None, 1)) for number, line in enumerate(lines, start=1))
    try:
        for line, row in at_last_space if mark == _LAST_SPACE else ((reader.line_num, row) for row in reader):
            cells = tuple(map(str.strip, row))  # the garbage collector does not track tuples of strings
            if any(cells) and (cells[0][:1] != "#" or any(cells[1:])):
                yield line, cells
    except csv.Error as error:
        raise TableError(f"Line {max(1, reader.line_num)} is not CSV ({error}).") from error


def _width(row: Sequence[str]) -> int:
    """Return the number of cells up to the last non-empty one."""
    return next((place for place in range(len(row), 0, -1) if row[place - 1]), 0)


def _first_rows(lines: Sequence[str], mark: str) -> list[_Row]:
    """Return the first rows that can be read."""
    rows: list[_Row] = []
    with suppress(TableError):
        rows.extend(islice(_rows(lines, mark), 500))
    return rows


def _share_fitting(rows: Sequence[_Row]) -> float:
    """Return the share of rows with at least two cells and at most as many as the first; 0 for one column."""
    most = len(rows[0][1]) if rows else 0
    return sum(len(row) > 1 and _width(row) <= most for _, row in rows) / len(rows) if most > 1 else 0.0


def _table(rows: Iterable[_Row], mark: str) -> Table:
    """Return the table of rows, cut or padded to the length of the first."""
    numbered = list(rows)
    width = len(numbered[0][1]) if numbered else 0
    return Table(
        rows=tuple(tuple(row[:width]) + ("",) * (width - len(row)) for _, row in numbered),
        lines=tuple(line for line, _ in numbered),
        delimiter=" " if mark == _LAST_SPACE else mark,
    )


def _bounded(rows: Iterable[_Row], mark: str) -> Iterator[_Row]:
    """Yield the rows; TableError if one is wider than the first, or if there are too many."""
    width = num_cells = 0
    for line, row in rows:
        width = width or len(row)
        if len(row) > width and _width(row) > width:
            advice = " Put text with commas in quotes, and write numbers with points." * (mark == ",")
            raise TableError(
                f"Line {line} has {plural(len(row), 'cell')} where the first line has {width}: "
                f"{_quoted(row, mark)!r}.{advice}"
            )
        num_cells += width
        if width > _MOST_COLUMNS or num_cells > _MOST_CELLS:
            raise TableError(
                f"It has more than {_MOST_COLUMNS:,} columns or {_MOST_CELLS:,} cells, the most that are read."
            )
        yield line, row


def _quoted(row: Sequence[str], mark: str) -> str:
    text = (mark if len(mark) == 1 else " ").join(row[:_MOST_COLUMNS]).rstrip()
    return printable(text if len(text) < 80 else text[:79] + "…")


# ---- numbers and named columns


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """One row of a table whose columns have names; ``decimal`` is the decimal mark of its numbers."""

    line: int
    cells: Mapping[str, str]
    decimal: str = "."

    def number(self, column: str, *, least: float = -math.inf, most: float = math.inf) -> float:
        """Return the number in ``column``; BadValue if there is none."""
        return foreign_values.number(self.cells[column].replace(self.decimal, "."), column, least=least, most=most)


def column_key(text: str) -> str:
    """Return a column's name for comparisons: without case, spaces and punctuation.

    >>> column_key("Top-1"), column_key("predicted damage")
    ('top1', 'predicteddamage')
    """
    return re.sub(r"[\W_]+", "", text.casefold())


def read_records(
    content: bytes | str, columns: Sequence[str], *, most_bytes: int = MOST_BYTES
) -> tuple[tuple[TableRecord, ...], tuple[str, ...]]:
    """Read a table whose first line names ``columns``, in any order; return its rows, and notes on how it was read.

    TableError as in :func:`read_table`, and where a column is missing or repeated.
    """
    wanted = {column_key(name): name for name in columns}
    table = read_table(
        content, score=lambda first: len(wanted.keys() & set(map(column_key, first.rows[0]))), most_bytes=most_bytes
    )
    found = grouped((column_key(cell), place) for place, cell in enumerate(table.rows[0]))
    if missing := [name for key, name in wanted.items() if key not in found]:
        raise TableError(
            f"Its first line must name the columns {','.join(columns)}; it is {table.quoted(0)!r} and lacks "
            f"{', '.join(missing)}."
        )
    if repeated := next((name for key, name in wanted.items() if len(found[key]) > 1), ""):
        raise TableError(f"Its first line names the column {repeated} more than once: {table.quoted(0)!r}.")
    places = {name: found[key][0] for key, name in wanted.items()}
    rows = [{name: plain_cell(row[place]) for name, place in places.items()} for row in table.rows[1:]]
    commas = table.delimiter == ";" and any(map(_COMMA_NUMBER.fullmatch, chain(*map(dict.values, rows))))
    surplus = [name for place, name in enumerate(table.rows[0]) if name and place not in places.values()]
    unread = (f"{plural(len(surplus), 'column')} of it not read: {listed(surplus)}.",) if surplus else ()
    records = tuple(
        TableRecord(line=line, cells=cells, decimal="," if commas else ".")
        for line, cells in zip(table.lines[1:], rows, strict=True)
    )
    return records, (*table.notes, *("Commas in its numbers are decimal marks.",) * commas, *unread)
