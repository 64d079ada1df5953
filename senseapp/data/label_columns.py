"""One label for each picture, from the columns of a label table."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from senseapp.core.errors import InvalidDataset
from senseapp.core.table_records import column_key
from senseapp.core.texts import listed, plural, printable
from senseapp.data.label_tables import LABEL_WORDS, LabelTable

_WHOLE = re.compile(r"\+?(-?\d+)(?:[.,]0*)?", re.ASCII)
_SCIENTIFIC = re.compile(r"[+-]?\d(?:[.,]\d{0,18})?[eE][+-]\d{2}", re.ASCII)
"""As :func:`numpy.savetxt` writes numbers; names such as ``1e2`` are none."""
_FRACTION = re.compile(r"[+-]?\d*[.,]\d+(?:[eE][+-]?\d+)?|[+-]?\d+(?:\.\d*)?[eE][+-]?\d+", re.ASCII)
BLANK = ("", "nan")
_ON, _OFF = ("1", "true"), ("0", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleLabels:
    """The label of each picture, by its path; ``notes`` say how they were found and what was left out."""

    labels: dict[str, str]
    notes: tuple[str, ...]


def single_labels(table: LabelTable) -> SingleLabels:
    """Return one label for each picture: of the only column, of one called ``label``, or of one-hot columns.

    Whole numbers that pandas wrote as ``3.0`` are taken as ``3``; blank labels leave their pictures out.

    Raises:
        InvalidDataset: several columns may hold the label, a picture has two labels, or none has any.
    """
    cells = [
        row if all(map(str.isascii, row)) else tuple(unicodedata.normalize("NFC", cell) for cell in row)
        for _, row in table.rows
    ]
    column, on_column = _label_column(table, cells)
    if column is None:
        values = _from_one_hot(table, cells)
        notes = ["Each column is one class, and the label of a picture is the column that says 1."]
    else:
        values, on_values = _plain([row[column] for row in cells])
        notes = [*on_column, *on_values]
    labels: dict[str, str] = {}
    blank: list[str] = []
    for (picture, _), label in zip(table.rows, values, strict=True):
        if label.casefold() in BLANK:
            blank.append(picture)
        elif labels.setdefault(picture, label) != label:
            raise InvalidDataset(
                f"{table.title} gives {printable(picture)} two labels, {printable(labels[picture])} and "
                f"{printable(label)}. Keep one line per picture, or choose multi-label (--task multilabel) where "
                "several labels may be true of one."
            )
    if not labels:
        raise InvalidDataset(f"{table.title} gives no picture a label. Each line must hold a file and a label.")
    left_out = [picture for picture in dict.fromkeys(blank) if picture not in labels]
    if left_out:
        notes.append(f"{plural(len(left_out), 'picture')} without a label left out: {listed(left_out)}.")
    return SingleLabels(labels=labels, notes=(*table.notes, *notes))


def _plain(values: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return whole numbers without the decimals that pandas gives them, and a note where there were any."""
    known = [value for value in values if value.casefold() not in BLANK]
    with_decimals = [value for value in known if not value.lstrip("-").isdigit()]
    numbers = {value: _whole_number(value) for value in dict.fromkeys(known)}
    if not with_decimals or None in numbers.values():
        return list(values), ()
    whole = [numbers.get(value) or value for value in values]
    first = values.index(with_decimals[0])
    return whole, (f"Labels are whole numbers with decimals: {values[first]} is taken as {whole[first]}.",)


def _whole_number(cell: str) -> str | None:
    """Return a whole number without what pandas (``3.0``) or NumPy (``3.0e+00``) add to it; None for others.

    >>> [_whole_number(cell) for cell in ("3", "+3", "3.0", "1.10e+01", "1.5", "1.5e+00", "1e2")]
    ['3', '3', '3', '11', None, None, None]
    """
    if found := _WHOLE.fullmatch(cell):
        return found[1]
    if not _SCIENTIFIC.fullmatch(cell):
        return None
    number = Decimal(cell.replace(",", "."))
    return str(int(number)) if number == int(number) else None


def _label_column(table: LabelTable, cells: Sequence[tuple[str, ...]]) -> tuple[int | None, tuple[str, ...]]:
    """Return the column with the labels, None where each column is one class; and a note where others are not read."""
    every = range(len(table.columns))
    if len(every) == 1:
        return 0, ()
    found = [place for place in every if table.has_header and column_key(table.columns[place]) in LABEL_WORDS]
    if not found:
        if _hot_columns(cells):
            return None, ()
        columns = {place: [row[place] for row in cells] for place in every}
        found = [place for place in every if _may_be_labels(columns[place])]
        found = [place for place in found if len(set(columns[place])) < len(cells)] or found
    if not found or not _say_the_same(cells, found):
        may = f": {listed(table.columns[place] for place in found or every)}" if table.has_header else ""
        raise InvalidDataset(
            f"{plural(len(found or every), 'column')} of {table.title} may hold the label{may}. Call the right one "
            "label in the first line, or keep it alone beside the file names."
        )
    others = listed(table.columns[place] for place in every if place != found[0])
    chosen = printable(table.columns[found[0]])
    named = f"the column {chosen}; not read: {others}" if table.has_header else f"column {found[0] + 1} of {len(every)}"
    return found[0], (f"Labels are those of {named}.",)


def _may_be_labels(values: Sequence[str]) -> bool:
    """Return whether a column may hold classes: several, and no fractions."""
    kinds = {value for value in values if value.casefold() not in BLANK}
    is_whole = all(map(_whole_number, kinds))
    return len(kinds) > 1 and (is_whole or not any(map(_FRACTION.fullmatch, kinds)))


def _say_the_same(cells: Sequence[tuple[str, ...]], places: Sequence[int]) -> bool:
    """Return whether the columns name the same classes, as number and name do."""
    both = {tuple(row[place] for place in places) for row in cells}
    return all(len({pair[index] for pair in both}) == len(both) for index in range(len(places)))


def truth_in(cell: str) -> bool | None:
    """Return whether a cell means true; None if it means neither true nor false."""
    text = _whole_number(cell) or cell.casefold()
    return True if text in _ON else False if text in _OFF else None


def _hot_columns(cells: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the columns that hold only 0 and 1 if each row has at most one 1 in them, and some row has one."""
    known = {cell: truth_in(cell) for row in cells for cell in row}
    binary = [place for place in range(len(cells[0])) if all(known[row[place]] is not None for row in cells)]
    ones = [sum(bool(known[row[place]]) for place in binary) for row in cells]
    return binary if len(binary) > 1 and max(ones) == 1 else []


def _from_one_hot(table: LabelTable, cells: Sequence[tuple[str, ...]]) -> list[str]:
    hot = _hot_columns(cells)
    return [next((table.columns[place] for place in hot if truth_in(row[place])), "") for row in cells]
