"""Labels of pictures from the columns of a label table: one label for each picture, or several.

Several come from columns of 0 and 1, from lists in a cell, or from lines that name a picture again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias

from senseapp.core.errors import InvalidDataset
from senseapp.core.foreign_values import BadValue, read_json
from senseapp.core.table_records import column_key
from senseapp.core.texts import listed, plural, printable
from senseapp.data.label_tables import LABEL_WORDS, LabelTable
from senseapp.tasks.labels import LabelTruth

_WHOLE = re.compile(r"\+?(-?\d+)(?:[.,]0*)?", re.ASCII)
_SCIENTIFIC = re.compile(r"[+-]?\d(?:[.,]\d{0,18})?[eE][+-]\d{2}", re.ASCII)
"""As :func:`numpy.savetxt` writes numbers; names such as ``1e2`` are none."""
_FRACTION = re.compile(r"[+-]?\d*[.,]\d+(?:[eE][+-]?\d+)?|[+-]?\d+(?:\.\d*)?[eE][+-]?\d+", re.ASCII)
_BLANK = ("", "nan")
_ON, _OFF = ("1", "true"), ("0", "false")
_LIST_WORDS = LABEL_WORDS | {"annotations", "attributes", "findinglabels", "findings", "tag", "tags"}
_UNCERTAIN = re.compile(r"-1(?:[.,]0*)?|u|uncertain|unknown", re.ASCII | re.IGNORECASE)
_SEPARATORS: dict[str, str] = {"|": "bars", ";": "semicolons", ",": "commas", " ": "spaces"}
_LEAST_SHARE = 0.1  # of lines with two 1s; fewer may be mistakes in a table of one class for each picture
_UNMISTAKABLE = ("|", ";")  # commas and spaces are part of many a label

Row: TypeAlias = tuple[str, ...]


def _cells(table: LabelTable) -> list[Row]:
    """Return the cells of each line, with composed letters."""
    return [tuple(unicodedata.normalize("NFC", cell) for cell in row) for _, row in table.rows]


@lru_cache(maxsize=1024)  # a table has few different cells of this kind
def _truth_in(cell: str) -> bool | None:
    """Return whether a cell means true; None if it means neither true nor false."""
    text = _whole_number(cell) or cell.casefold()
    return True if text in _ON else False if text in _OFF else None


def _binary_columns(cells: Sequence[Row], *, unknown: bool) -> list[int]:
    """Return the columns of nothing but 0 and 1; with ``unknown`` also those with blanks and marks of uncertainty."""
    found = []
    for place in range(len(cells[0])):
        values = {row[place] for row in cells}
        known = {value for value in values if _truth_in(value) is not None}
        others = values - known
        if known and (not others or (unknown and all(map(_is_unknown, others)))):
            found.append(place)
    return found


def _is_unknown(cell: str) -> bool:
    return cell.casefold() in _BLANK or _UNCERTAIN.fullmatch(cell) is not None


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
    cells = _cells(table)
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
        if label.casefold() in _BLANK:
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
    known = [value for value in values if value.casefold() not in _BLANK]
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


def _label_column(table: LabelTable, cells: Sequence[Row]) -> tuple[int | None, tuple[str, ...]]:
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
    kinds = {value for value in values if value.casefold() not in _BLANK}
    is_whole = all(map(_whole_number, kinds))
    return len(kinds) > 1 and (is_whole or not any(map(_FRACTION.fullmatch, kinds)))


def _say_the_same(cells: Sequence[Row], places: Sequence[int]) -> bool:
    """Return whether the columns name the same classes, as number and name do."""
    both = {tuple(row[place] for place in places) for row in cells}
    return all(len({pair[index] for pair in both}) == len(both) for index in range(len(places)))


def _hot_columns(cells: Sequence[Row]) -> list[int]:
    """Return the columns that hold only 0 and 1 if each row has at most one 1 in them, and some row has one."""
    binary = _binary_columns(cells, unknown=False)
    ones = [sum(_truth_in(row[place]) is True for place in binary) for row in cells]
    return binary if len(binary) > 1 and max(ones) == 1 else []


def _from_one_hot(table: LabelTable, cells: Sequence[Row]) -> list[str]:
    hot = _hot_columns(cells)
    return [next((table.columns[place] for place in hot if _truth_in(row[place])), "") for row in cells]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralLabels:
    """Which labels are true of each picture, by its path.

    Attributes:
        truths: of the pictures that the table names.
        names: all labels, columns in their order, others sorted.
        notes: how they were found, and what was left out.
    """

    truths: dict[str, LabelTruth]
    names: tuple[str, ...]
    notes: tuple[str, ...]


def says_several(table: LabelTable) -> bool:
    """Return whether a table says without doubt that several labels are true of one picture.

    It does with nothing but columns of 0 and 1 in which a tenth of the lines has two 1s, and with lists such as
    ``cat|dog`` whose parts come again in other lists.
    """
    cells = _cells(table)
    column = _list_column(table, cells)
    if column is not None:
        return _separator([row[column] for row in cells], _UNMISTAKABLE) is not None
    hot = _binary_columns(cells, unknown=True)
    if not len(hot) == len(table.columns) > 1:
        return False
    several = sum(sum(_truth_in(row[place]) is True for place in hot) > 1 for row in cells)
    return several >= _LEAST_SHARE * len(cells)


def several_labels(table: LabelTable) -> SeveralLabels:
    """Return the labels of each picture; lines that name a picture again add to them.

    Raises:
        InvalidDataset: no column holds labels, or two lines contradict each other.
    """
    cells = _cells(table)
    column = _list_column(table, cells)
    if column is not None:
        return _from_lists(table, [row[column] for row in cells], table.columns[column])
    hot = _binary_columns(cells, unknown=True)
    if not hot:
        raise InvalidDataset(
            f"{table.title} has no column of 0 and 1 for each label, and none called labels with all labels of a "
            f"picture: {listed(table.columns)}. Write one or the other."
        )
    return _from_columns(table, cells, hot)


def _list_column(table: LabelTable, cells: Sequence[Row]) -> int | None:
    """Return the column in which the labels of a picture stand together; None where each label has a column."""
    places = range(len(table.columns))
    called = [place for place in places if table.has_header and column_key(table.columns[place]) in _LIST_WORDS]
    if called:
        return called[0]
    binary = _binary_columns(cells, unknown=True)
    if len(places) == 1 and (not binary or not table.has_header):
        return 0
    if binary:
        return None
    separated = [place for place in places if _separator([row[place] for row in cells], tuple(_SEPARATORS)) is not None]
    return separated[0] if len(separated) == 1 else None


def _separator(values: Sequence[str], allowed: Iterable[str]) -> str | None:
    """Return what separates labels in a cell: the first of ``allowed`` whose parts come again in another cell."""
    distinct = {value for value in values if value.casefold() not in _BLANK}
    if any(_json_list(value) is not None for value in distinct):
        return "["
    for separator in allowed:
        if not any(separator in value for value in distinct):
            continue
        seen: set[str] = set()
        for value in distinct:
            parts = set(_parts(value, separator))
            if parts & seen:
                return separator
            seen |= parts
    return None


def _parts(value: str, separator: str | None) -> list[str]:
    if separator == "[":
        return _json_list(value) or ([] if value.startswith("[") else [value])
    pieces = [value] if separator is None else value.split(separator)
    return [piece.strip() for piece in pieces if piece.strip()]


def _json_list(value: str) -> list[str] | None:
    """Return the items of ``["cat", "dog"]``, also as Python prints it; None where it is no list."""
    if not (value.startswith("[") and value.endswith("]")):
        return None
    try:
        items = read_json(value.replace("'", '"'))
    except BadValue:
        return None
    return [str(item) for item in items] if all(isinstance(item, str | int) for item in items) else None


def _from_lists(table: LabelTable, values: Sequence[str], title: str) -> SeveralLabels:
    separator = _separator(values, tuple(_SEPARATORS))
    labels: dict[str, dict[str, None]] = {}
    for (picture, _), value in zip(table.rows, values, strict=True):
        own = [] if value.casefold() in _BLANK else _parts(value, separator)
        labels.setdefault(picture, {}).update(dict.fromkeys(own))
    truths = {picture: LabelTruth(true=tuple(own)) for picture, own in labels.items()}
    names = sorted({name for truth in truths.values() for name in truth.true})
    if not names:
        raise InvalidDataset(f"{table.title} gives no picture a label. Each line must hold a file and its labels.")
    how = f", separated by {_SEPARATORS[separator]}" if separator in _SEPARATORS else ""
    where = f"the column {printable(title)}" if table.has_header else "one column"
    notes = [f"All labels of a picture stand in {where}{how}."]
    if any(not truth.true for truth in truths.values()):
        notes.append("Pictures with a blank cell are taken to have no label.")
    return SeveralLabels(truths=truths, names=tuple(names), notes=(*table.notes, *notes))


def _from_columns(table: LabelTable, cells: Sequence[Row], hot: Sequence[int]) -> SeveralLabels:
    names = [table.columns[place] for place in hot]
    has_zeros = any(_truth_in(row[place]) is False for row in cells for place in hot)

    def is_unknown(cell: str) -> bool:
        return _truth_in(cell) is None and (has_zeros or cell.casefold() not in _BLANK)

    truths: dict[str, LabelTruth] = {}
    for (picture, _), row in zip(table.rows, cells, strict=True):
        truth = LabelTruth(
            true=_chosen(names, hot, row, lambda cell: _truth_in(cell) is True),
            unknown=_chosen(names, hot, row, is_unknown),
        )
        if truths.setdefault(picture, truth) != truth:
            raise InvalidDataset(
                f"{table.title} says two things of {printable(picture)}. Keep one line per picture, or write its "
                "labels as they should be in each."
            )
    notes = ["Each column of 0 and 1 is one label."]
    others = [name for place, name in enumerate(table.columns) if place not in hot]
    if others:
        notes.append(f"Columns of other values are not read: {listed(others)}.")
    if not has_zeros:
        notes.append("There is no 0 in them: blank cells are taken to say that a label is not true.")
    return SeveralLabels(truths=truths, names=tuple(names), notes=(*table.notes, *notes))


def _chosen(names: Sequence[str], hot: Sequence[int], row: Row, is_so: Callable[[str], bool]) -> tuple[str, ...]:
    return tuple(name for name, place in zip(names, hot, strict=True) if is_so(row[place]))
