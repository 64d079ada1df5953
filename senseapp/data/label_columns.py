"""Labels of pictures from the columns of a label table: one label for each picture, or several.

Several come from columns of 0 and 1, from lists in a cell, or from lines that name a picture again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

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
_LIST_WORDS = LABEL_WORDS | {"annotations", "attributes", "findinglabels", "findings", "tag", "tags"}
_UNCERTAIN = re.compile(r"-1(?:[.,]0*)?|u|uncertain|unknown", re.ASCII | re.IGNORECASE)
_SEPARATORS: dict[str, str] = {"|": "bars", ";": "semicolons", ",": "commas", " ": "spaces"}
_LEAST_SHARE = 0.1  # of lines with two 1s; fewer may be mistakes in a table of one class for each picture
_UNMISTAKABLE = ("|", ";")  # commas and spaces are part of many a label


def _is_blank(cell: str) -> bool:
    return cell.casefold() in _BLANK


@lru_cache(maxsize=1024)  # a table has few different cells of this kind
def _truth_in(cell: str) -> bool | None:
    """Return whether a cell means true; None if it means neither true nor false."""
    return {"1": True, "true": True, "0": False, "false": False}.get(_whole_number(cell) or cell.casefold())


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


class _Column:
    """One column of a table, with composed letters; its ``key`` is empty where the table has no header."""

    def __init__(self, table: LabelTable, place: int) -> None:
        self.name = table.columns[place]
        self.key = column_key(self.name) if table.has_header else ""
        self.values = [unicodedata.normalize("NFC", row[place]) for _, row in table.rows]
        self.kinds = {value for value in self.values if not _is_blank(value)}

    def is_binary(self, *, unknown: bool) -> bool:
        """Return whether it holds nothing but 0 and 1; with ``unknown`` also blanks and marks of uncertainty."""
        known = {kind for kind in self.kinds if _truth_in(kind) is not None}
        if not unknown:
            return bool(known) and all(_truth_in(value) is not None for value in set(self.values))
        return bool(known) and all(map(_UNCERTAIN.fullmatch, self.kinds - known))

    def is_of_classes(self) -> bool:
        """Return whether it may hold classes: several, and no fractions."""
        is_whole = all(map(_whole_number, self.kinds))
        return len(self.kinds) > 1 and (is_whole or not any(map(_FRACTION.fullmatch, self.kinds)))

    def separator(self, allowed: Iterable[str]) -> str | None:
        """Return what separates labels in a cell: the first of ``allowed`` whose parts come again in another cell."""
        if any(_json_list(value) is not None for value in self.kinds):
            return "["
        for separator in allowed:
            seen: set[str] = set()
            for value in self.kinds if any(separator in value for value in self.kinds) else ():
                parts = set(_parts(value, separator))
                if parts & seen:
                    return separator
                seen |= parts
        return None


def _columns(table: LabelTable) -> list[_Column]:
    return [_Column(table, place) for place in range(len(table.columns))]


def _ones(columns: Sequence[_Column]) -> list[int]:
    """Return how many of the columns say 1 in each line."""
    return [
        sum(_truth_in(cell) is True for cell in row) for row in zip(*(each.values for each in columns), strict=True)
    ]


# ---- one label


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
    values, notes = _one_for_each_line(table, _columns(table))
    labels: dict[str, str] = {}
    for (picture, _), label in zip(table.rows, values, strict=True):
        if not _is_blank(label) and labels.setdefault(picture, label) != label:
            raise InvalidDataset(
                f"{table.title} gives {printable(picture)} two labels, {printable(labels[picture])} and "
                f"{printable(label)}. Keep one line per picture, or choose multi-label (--task multilabel) where "
                "several labels may be true of one."
            )
    if not labels:
        raise InvalidDataset(f"{table.title} gives no picture a label. Each line must hold a file and a label.")
    if left_out := [picture for picture in dict.fromkeys(name for name, _ in table.rows) if picture not in labels]:
        notes.append(f"{plural(len(left_out), 'picture')} without a label left out: {listed(left_out)}.")
    return SingleLabels(labels=labels, notes=(*table.notes, *notes))


def _one_for_each_line(table: LabelTable, columns: Sequence[_Column]) -> tuple[list[str], list[str]]:
    """Return the label in each line, and notes on where it stands."""
    if len(columns) == 1:
        return _plain(columns[0].values, [])
    found = [column for column in columns if column.key in LABEL_WORDS]
    if not found:
        hot = [column for column in columns if column.is_binary(unknown=False)]
        if len(hot) > 1 and max(_ones(hot)) == 1:
            rows = zip(*(column.values for column in hot), strict=True)
            labels = (
                next((each.name for each, cell in zip(hot, row, strict=True) if _truth_in(cell)), "") for row in rows
            )
            return list(labels), ["Each column is one class, and the label of a picture is the column that says 1."]
        found = [column for column in columns if column.is_of_classes()]
        found = [column for column in found if len(set(column.values)) < len(table.rows)] or found
    if not found or not _say_the_same(found):
        may = f": {listed(column.name for column in found or columns)}" if table.has_header else ""
        raise InvalidDataset(
            f"{plural(len(found or columns), 'column')} of {table.title} may hold the label{may}. Call the right one "
            "label in the first line, or keep it alone beside the file names."
        )
    chosen, others = found[0], listed(column.name for column in columns if column is not found[0])
    named = f"column {columns.index(chosen) + 1} of {len(columns)}"
    if table.has_header:
        named = f"the column {printable(chosen.name)}; not read: {others}"
    return _plain(chosen.values, [f"Labels are those of {named}."])


def _say_the_same(columns: Sequence[_Column]) -> bool:
    """Return whether the columns name the same classes, as number and name do."""
    both = set(zip(*(column.values for column in columns), strict=True))
    return all(len({pair[place] for pair in both}) == len(both) for place in range(len(columns)))


def _plain(values: list[str], notes: list[str]) -> tuple[list[str], list[str]]:
    """Return whole numbers without the decimals that pandas gives them, with a note where there were any."""
    numbers = {value: _whole_number(value) for value in dict.fromkeys(values) if not _is_blank(value)}
    first = next((value for value in numbers if not value.lstrip("-").isdigit()), None)
    if first is None or None in numbers.values():
        return values, notes
    note = f"Labels are whole numbers with decimals: {first} is taken as {numbers[first]}."
    return [numbers.get(value) or value for value in values], [*notes, note]


# ---- several labels


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
    columns = _columns(table)
    if (lists := _list_column(columns)) is not None:
        return lists.separator(_UNMISTAKABLE) is not None
    if len(columns) < 2 or not all(column.is_binary(unknown=True) for column in columns):
        return False
    return sum(ones > 1 for ones in _ones(columns)) >= _LEAST_SHARE * len(table.rows)


def several_labels(table: LabelTable) -> SeveralLabels:
    """Return the labels of each picture; lines that name a picture again add to them.

    Raises:
        InvalidDataset: no column holds labels, or two lines contradict each other.
    """
    columns = _columns(table)
    if (lists := _list_column(columns)) is not None:
        return _from_lists(table, lists)
    hot = [column for column in columns if column.is_binary(unknown=True)]
    if not hot:
        raise InvalidDataset(
            f"{table.title} has no column of 0 and 1 for each label, and none called labels with all labels of a "
            f"picture: {listed(table.columns)}. Write one or the other."
        )
    return _from_columns(table, hot, [column.name for column in columns if column not in hot])


def _list_column(columns: Sequence[_Column]) -> _Column | None:
    """Return the column in which the labels of a picture stand together; None where each label has a column."""
    if called := [column for column in columns if column.key in _LIST_WORDS]:
        return called[0]
    has_binary = any(column.is_binary(unknown=True) for column in columns)
    if len(columns) == 1 and not (has_binary and columns[0].key):
        return columns[0]
    separated = [] if has_binary else [column for column in columns if column.separator(_SEPARATORS) is not None]
    return separated[0] if len(separated) == 1 else None


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


def _from_lists(table: LabelTable, column: _Column) -> SeveralLabels:
    separator = column.separator(_SEPARATORS)
    labels: dict[str, dict[str, None]] = {}
    for (picture, _), value in zip(table.rows, column.values, strict=True):
        own = [] if _is_blank(value) else _parts(value, separator)
        labels.setdefault(picture, {}).update(dict.fromkeys(own))
    truths = {picture: LabelTruth(true=tuple(own)) for picture, own in labels.items()}
    names = sorted({name for own in labels.values() for name in own})
    if not names:
        raise InvalidDataset(f"{table.title} gives no picture a label. Each line must hold a file and its labels.")
    how = f", separated by {_SEPARATORS[separator]}" if separator in _SEPARATORS else ""
    where = f"the column {printable(column.name)}" if table.has_header else "one column"
    notes = [f"All labels of a picture stand in {where}{how}."]
    if not all(labels.values()):
        notes.append("Pictures with a blank cell are taken to have no label.")
    return SeveralLabels(truths=truths, names=tuple(names), notes=(*table.notes, *notes))


def _from_columns(table: LabelTable, hot: Sequence[_Column], others: Sequence[str]) -> SeveralLabels:
    names = [column.name for column in hot]
    has_zeros = any(_truth_in(kind) is False for column in hot for kind in column.kinds)
    truths: dict[str, LabelTruth] = {}
    for (picture, _), *row in zip(table.rows, *(column.values for column in hot), strict=True):
        cells = list(zip(names, row, strict=True))
        unknown = [name for name, cell in cells if _truth_in(cell) is None and (has_zeros or not _is_blank(cell))]
        truth = LabelTruth(true=tuple(name for name, cell in cells if _truth_in(cell)), unknown=tuple(unknown))
        if truths.setdefault(picture, truth) != truth:
            raise InvalidDataset(
                f"{table.title} says two things of {printable(picture)}. Keep one line per picture, or write its "
                "labels as they should be in each."
            )
    notes = ["Each column of 0 and 1 is one label."]
    if others:
        notes.append(f"Columns of other values are not read: {listed(others)}.")
    if not has_zeros:
        notes.append("There is no 0 in them: blank cells are taken to say that a label is not true.")
    return SeveralLabels(truths=truths, names=tuple(names), notes=(*table.notes, *notes))
