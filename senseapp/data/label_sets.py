"""Several labels for each picture, from the columns of a label table: columns of 0 and 1, lists in a cell, or lines."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from senseapp.core.errors import InvalidDataset
from senseapp.core.foreign_values import BadValue, read_json
from senseapp.core.table_records import column_key
from senseapp.core.texts import listed, printable
from senseapp.data.label_columns import BLANK, truth_in
from senseapp.data.label_tables import LABEL_WORDS, LabelTable
from senseapp.tasks.labels import LabelTruth

_LIST_WORDS = LABEL_WORDS | {"annotations", "attributes", "findinglabels", "findings", "tag", "tags"}
_UNCERTAIN = re.compile(r"-1(?:[.,]0*)?|u|uncertain|unknown", re.ASCII | re.IGNORECASE)
_SEPARATORS: dict[str, str] = {"|": "bars", ";": "semicolons", ",": "commas", " ": "spaces"}
_LEAST_SHARE = 0.1  # of lines with two 1s; fewer may be mistakes in a table of one class for each picture
_UNMISTAKABLE = ("|", ";")  # commas and spaces are part of many a label

Row: TypeAlias = tuple[str, ...]


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
    hot = _binary_columns(cells)
    if not len(hot) == len(table.columns) > 1:
        return False
    several = sum(sum(truth_in(row[place]) is True for place in hot) > 1 for row in cells)
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
    hot = _binary_columns(cells)
    if not hot:
        raise InvalidDataset(
            f"{table.title} has no column of 0 and 1 for each label, and none called labels with all labels of a "
            f"picture: {listed(table.columns)}. Write one or the other."
        )
    return _from_columns(table, cells, hot)


def _cells(table: LabelTable) -> list[Row]:
    return [tuple(unicodedata.normalize("NFC", cell) for cell in row) for _, row in table.rows]


def _binary_columns(cells: Sequence[Row]) -> list[int]:
    """Return the columns that hold 0 and 1, blanks and marks of uncertainty, and nothing else."""
    found = []
    for place in range(len(cells[0])):
        values = {row[place] for row in cells}
        known = {value for value in values if truth_in(value) is not None}
        if known and all(_is_unknown(value) for value in values - known):
            found.append(place)
    return found


def _is_unknown(cell: str) -> bool:
    return cell.casefold() in BLANK or _UNCERTAIN.fullmatch(cell) is not None


def _list_column(table: LabelTable, cells: Sequence[Row]) -> int | None:
    """Return the column in which the labels of a picture stand together; None where each label has a column."""
    places = range(len(table.columns))
    called = [place for place in places if table.has_header and column_key(table.columns[place]) in _LIST_WORDS]
    if called:
        return called[0]
    binary = _binary_columns(cells)
    if len(places) == 1 and (not binary or not table.has_header):
        return 0
    if binary:
        return None
    separated = [place for place in places if _separator([row[place] for row in cells], tuple(_SEPARATORS)) is not None]
    return separated[0] if len(separated) == 1 else None


def _separator(values: Sequence[str], allowed: Iterable[str]) -> str | None:
    """Return what separates labels in a cell: the first of ``allowed`` whose parts come again in another cell."""
    distinct = {value for value in values if value.casefold() not in BLANK}
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
        own = [] if value.casefold() in BLANK else _parts(value, separator)
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
    has_zeros = any(truth_in(row[place]) is False for row in cells for place in hot)

    def is_unknown(cell: str) -> bool:
        return truth_in(cell) is None and (has_zeros or cell.casefold() not in BLANK)

    truths: dict[str, LabelTruth] = {}
    for (picture, _), row in zip(table.rows, cells, strict=True):
        truth = LabelTruth(
            true=_chosen(names, hot, row, lambda cell: truth_in(cell) is True),
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
