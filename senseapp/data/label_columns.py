"""Labels of pictures from the columns of a label table: one label for each picture, or several.

Several come from columns of 0 and 1, from lists in a cell, or from lines that name a picture again.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from senseapp.core.errors import InvalidDataset
from senseapp.core.tables import column_key
from senseapp.core.texts import listed, plural, printable
from senseapp.data.label_tables import LABEL_WORDS, LabelTable
from senseapp.tasks.labels import LabelTruth

_BLANK = ("", "nan")
_LIST_WORDS = LABEL_WORDS | {"annotations", "attributes", "findinglabels", "findings", "tag", "tags"}
_UNCERTAIN = re.compile(r"-1(?:[.,]0*)?|u|uncertain|unknown", re.ASCII | re.IGNORECASE)
_SEPARATORS: dict[str, str] = {"|": "bars", ";": "semicolons", ",": "commas", " ": "spaces"}
_LEAST_SHARE = 0.1  # of lines with two 1s; fewer may be mistakes in a table of one class for each picture
_UNMISTAKABLE = ("|", ";")  # commas and spaces are part of many a label


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLabels:
    """The labels of the pictures that a table names, by their paths.

    Attributes:
        single: the label of each; empty where several may be true of one.
        several: which are true of each; empty where each has one.
        names: all labels, columns in their order, others sorted.
        notes: how they were found, and what was left out.
    """

    single: Mapping[str, str]
    several: Mapping[str, LabelTruth]
    names: tuple[str, ...]
    notes: tuple[str, ...]


def labels_in(table: LabelTable, *, several: bool) -> TableLabels:
    """Return the labels of each picture: several where it is asked for, or where the table says so without doubt.

    It does with nothing but columns of 0 and 1 in which a tenth of the lines has two 1s, and with lists such as
    ``cat|dog`` whose parts come again in other lists. Raises InvalidDataset where no column or several may hold the
    labels, two lines contradict each other, or none has any.
    """
    columns = [_Column(table, place) for place in range(len(table.columns))]
    lists = _list_column(columns)
    if not several:
        hot = len(columns) > 1 and all(column.is_binary(unknown=True) for column in columns)
        two = sum(ones > 1 for ones in _ones(columns)) if hot else 0
        several = bool(lists.separator(_UNMISTAKABLE)) if lists else hot and two >= _LEAST_SHARE * len(table.rows)
    if not several:
        return _single_labels(table, columns)
    return _from_lists(table, lists) if lists is not None else _from_columns(table, columns)


def _is_blank(cell: str) -> bool:
    return cell.casefold() in _BLANK


@lru_cache(maxsize=1024)  # a table has few different cells of this kind
def _truth_in(cell: str) -> bool | None:
    """Return whether a cell means true; None if it means neither true nor false."""
    return {"1": True, "true": True, "0": False, "false": False}.get(_whole_number(cell) or cell.casefold())


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell.replace(",", "."))  # Python takes 1_0 for 10
    except ValueError:
        return None


def _whole_number(cell: str) -> str | None:
    """Return a whole number without what pandas (``3.0``) or NumPy (``3.0e+00``) add to it; None for others.

    >>> [_whole_number(cell) for cell in ("3", "+3", "007", "3.0", "1.10e+01", "1.5")]
    ['3', '3', '007', '3', '11', None]
    """
    if cell.lstrip("+-").isdecimal():
        return cell.removeprefix("+")
    number = _number(cell)
    return str(int(number)) if number is not None and number.is_integer() else None


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
            return bool(known) and known == set(self.values)
        return bool(known) and all(map(_UNCERTAIN.fullmatch, self.kinds - known))

    def is_of_classes(self) -> bool:
        """Return whether it may hold classes: several, and no fractions."""
        fractions = any(_number(kind) is not None and _whole_number(kind) is None for kind in self.kinds)
        return len(self.kinds) > 1 and not fractions

    def separator(self, allowed: Iterable[str]) -> str:
        """Return what separates labels in a cell: the first of ``allowed`` whose parts come again in another cell."""
        if any(value.startswith("[") and value.endswith("]") for value in self.kinds):
            return "["
        for separator in allowed:
            seen: set[str] = set()
            for value in self.kinds if any(separator in value for value in self.kinds) else ():
                parts = set(_parts(value, separator))
                if parts & seen:
                    return separator
                seen |= parts
        return ""


def _ones(columns: Sequence[_Column]) -> list[int]:
    """Return how many of the columns say 1 in each line."""
    return [
        sum(_truth_in(cell) is True for cell in row) for row in zip(*(each.values for each in columns), strict=True)
    ]


# ---- one label


def _single_labels(table: LabelTable, columns: Sequence[_Column]) -> TableLabels:
    """Return one label for each picture: of the only column, of one called ``label``, or of one-hot columns."""
    values, notes = _one_for_each_line(table, columns)
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
    names = tuple(sorted(set(labels.values())))
    return TableLabels(single=labels, several={}, names=names, notes=(*table.notes, *notes))


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
    first = next((value for value, number in numbers.items() if number != value), None)
    if first is None or None in numbers.values():
        return values, notes
    note = f"Labels are whole numbers with decimals: {first} is taken as {numbers[first]}."
    return [numbers.get(value) or value for value in values], [*notes, note]


# ---- several labels


def _list_column(columns: Sequence[_Column]) -> _Column | None:
    """Return the column in which the labels of a picture stand together; None where each label has a column."""
    if called := [column for column in columns if column.key in _LIST_WORDS]:
        return called[0]
    has_binary = any(column.is_binary(unknown=True) for column in columns)
    if len(columns) == 1 and not (has_binary and columns[0].key):
        return columns[0]
    separated = [] if has_binary else [column for column in columns if column.separator(_SEPARATORS)]
    return separated[0] if len(separated) == 1 else None


def _parts(value: str, separator: str) -> list[str]:
    """Return the labels in a cell; of a list such as ``["cat", "dog"]``, also as Python prints it."""
    if separator == "[" and value.startswith("["):
        pieces = [piece.strip().strip("'\"") for piece in value.strip("[]").split(",")]
    else:
        pieces = value.split(separator) if separator in _SEPARATORS else [value]
    return [piece.strip() for piece in pieces if piece.strip()]


def _from_lists(table: LabelTable, column: _Column) -> TableLabels:
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
    return TableLabels(single={}, several=truths, names=tuple(names), notes=(*table.notes, *notes))


def _from_columns(table: LabelTable, columns: Sequence[_Column]) -> TableLabels:
    hot = [column for column in columns if column.is_binary(unknown=True)]
    if not hot:
        raise InvalidDataset(
            f"{table.title} has no column of 0 and 1 for each label, and none called labels with all labels of a "
            f"picture: {listed(table.columns)}. Write one or the other."
        )
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
    if others := [column.name for column in columns if column not in hot]:
        notes.append(f"Columns of other values are not read: {listed(others)}.")
    if not has_zeros:
        notes.append("There is no 0 in them: blank cells are taken to say that a label is not true.")
    return TableLabels(single={}, several=truths, names=tuple(names), notes=(*table.notes, *notes))
