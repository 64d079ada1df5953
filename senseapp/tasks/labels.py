"""Labels and annotations of pictures: as written, and in the classes of a model; files that say what labels mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from senseapp.core.errors import InvalidDataset, first_line_of
from senseapp.core.foreign_values import BadValue, is_int, mapping, read_json, text, whole
from senseapp.core.tables import Table, TableError, column_key, decoded_text, read_table
from senseapp.core.texts import listed, printable

if TYPE_CHECKING:
    from senseapp.tasks.annotations import PerImage

SET_ORDER, TABLE_ORDER = "in the set's own order", "by the order of the table"
"""Names of orders of labels that are not the alphabetical one."""
Layout = Literal["class folders", "table", "image set", "annotations", "unlabelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTruth:
    """Labels that are ``true`` of a picture, and those that are unknown; all others are false."""

    true: tuple[str, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLabels:
    """Labels of pictures from folders, a table ``file,label`` or an image set, and the known names of the outputs.

    Attributes:
        labels: of each picture, as written; empty where there are none.
        several: of each picture, where several labels may be true of one; empty where each has one.
        names: all labels, sorted, also of folders without pictures; those of an image set and of columns in their own
            order.
        num_outputs: numbers that the model gives for each image.
        output_names: of these; empty where unknown.
    """

    layout: Layout
    labels: Sequence[str]
    names: Sequence[str]
    num_outputs: int
    output_names: Sequence[str] = ()
    several: Sequence[LabelTruth] = ()

    @property
    def sorting(self) -> dict[str, Any]:
        """How names are sorted where their order means the outputs, and which of them have no pictures."""
        return {"own_order": SET_ORDER * (self.layout == "image set"), "empty": set(self.names).difference(self.labels)}

    @property
    def truths(self) -> Sequence[LabelTruth]:
        """Return :attr:`several`, or for each picture its one label."""
        return self.several or [LabelTruth(true=(label,)) for label in self.labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMapProposal:
    """A guess which of the model's outputs each written label means, to be shown, edited and confirmed.

    Attributes:
        pairs: (label as written, index of the output), for those that were matched.
        unmatched: labels that mean none of the model's outputs.
        words: how they were matched, as people read it: ``by number``.
        num_orders: orders of the outputs that fit the labels, this one included; measuring decides between several.
        certain: whether names, numbers of annotations or a person leave no doubt; else labels are assumed to mean it.
    """

    pairs: tuple[tuple[str, int], ...]
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    words: str = ""
    num_orders: int = 1
    certain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Meaning of the labels or annotations of pictures, in the model's own classes.

    Attributes:
        values: of the pictures kept, images first; None where the labels say nothing, so that all are unlabelled.
        kept: positions of the pictures that have a label.
        names: of the model's outputs, as people read them; empty where unknown.
        notes: sentences on what was matched and what was left out.
        orders: where several orders of the outputs fit the labels, or readings of class numbers are not certain, all of
            them, first the one that ``values`` follow.
        written: of such annotations, what they are in the class numbers of their files.
        read_as: makes of these, or of some of them, values and names by one of ``orders``.
    """

    values: PerImage | None
    kept: Sequence[int] = ()
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    orders: tuple[LabelMapProposal, ...] = ()
    written: PerImage = None
    read_as: Callable[[PerImage, LabelMapProposal], tuple[PerImage, tuple[str, ...]]] | None = None


# ---- which class each folder or label means, from a file: a table, a list of names in order, or JSON

_NAME_WORDS = frozenset(("folder", "foldername", "label", "labelname", "name", "classname"))
_CLASS_WORDS = frozenset(("class", "classid", "classindex", "id", "index", "idx", "output"))
_MOST_BYTES = 4_000_000  # 22,000 classes with names and ids have about 1 MB
_EXPECTED = (
    "Write lines such as 'cat,0' under a first line 'label,class', one name a line in the model's order, or JSON."
)


def read_class_map(content: bytes) -> tuple[tuple[str, int], ...]:
    """Return pairs (label as folders or the table write it, index of the model's output).

    A table has a column of labels and one of classes, numbers from 0, in any order; where both are numbers its first
    line must say which is which, ``label,class``. A list of names has one in each line, in the order of the outputs.
    JSON is an object from names to numbers (torchvision's ``class_to_idx``), from numbers to names (``id2label``), or
    an array of names.

    Raises InvalidDataset if it is none of these, can be read in two ways, or gives a label two classes.
    """
    try:
        written = decoded_text(content, _MOST_BYTES)
        pairs = _from_json(written) if written.lstrip()[:1] in ("{", "[") else _from_text(written)
    except (TableError, BadValue) as error:
        raise InvalidDataset(f"This class map cannot be read. {first_line_of(error)}. {_EXPECTED}") from error
    repeated, count = next(iter(Counter(name for name, _ in pairs).most_common(1)), ("", 1))
    if count > 1:
        raise InvalidDataset(f"The class map names {printable(repeated)} more than once. Keep one line for each label.")
    return pairs


def _from_json(written: str) -> tuple[tuple[str, int], ...]:
    found = read_json(written)
    if isinstance(found, list):
        return _in_order([text(each, "An entry of its list") for each in found])
    values = mapping(found, "It")
    if all(is_int(value) for value in values.values()):
        return tuple((name, _index(value)) for name, value in values.items())
    if all(isinstance(value, str) and not value.isdigit() for value in values.values()):
        return tuple((value, _index(number)) for number, value in values.items())
    raise BadValue("Its values must be whole numbers (from names), or all of them names (from numbers)")


def _from_text(written: str) -> tuple[tuple[str, int], ...]:
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    try:
        table = read_table(written)
    except TableError:
        if not lines or any(mark in line for line in lines for mark in ",;\t"):
            raise
        return _in_order(lines)
    if table.delimiter == " " and not all(line.rsplit(None, 1)[1].isdigit() for line in lines if " " in line):
        return _in_order(lines)  # names of several words
    return _from_table(table)


def _in_order(names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    if names and all(name.isdigit() for name in names):
        raise BadValue("Its names are all numbers, and each line may be a class or a label")
    return tuple((name, index) for index, name in enumerate(names))


def _from_table(table: Table) -> tuple[tuple[str, int], ...]:
    if len(table.rows[0]) != 2:
        raise BadValue(f"It has {len(table.rows[0])} columns where a label and a class are expected")
    keys = [column_key(cell) for cell in table.rows[0]]
    for label, number in ((0, 1), (1, 0)):
        if keys[label] in _NAME_WORDS and keys[number] in _CLASS_WORDS:
            return tuple((row[label], _index(row[number])) for row in table.rows[1:])
    rows = table.rows[1:] if not any(cell.isdigit() for cell in table.rows[0]) else table.rows
    numeric = [place for place in (0, 1) if all(row[place].isdigit() for row in rows)]
    if len(numeric) != 1:
        found = listed(table.rows[0])
        raise BadValue(
            f"Which of its two columns is the class cannot be told: its first line is {found!r}, not 'label,class'"
        )
    return tuple((row[1 - numeric[0]], _index(row[numeric[0]])) for row in rows)


def _index(value: object) -> int:
    return whole(value, "A class")
