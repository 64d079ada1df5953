"""Label tables: the column that names the pictures, in any spelling, and the columns with labels."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from senseapp.core.errors import InvalidDataset
from senseapp.core.tables import Table, TableError, column_key, read_table
from senseapp.core.texts import listed, plural, printable
from senseapp.data.contents import PICTURE_SUFFIXES, PictureSource, read_beside

_NEARLY_UNIQUE = 0.9  # share of rows: a few pictures may be named twice or be missing
_FILE_WORDS = frozenset(
    (
        *("file", "filename", "filenames", "filepath", "fname", "id", "image", "imagefile", "imageid", "imagename"),
        *("imagepath", "img", "imgname", "imgpath", "name", "path", "picture", "uri", "url"),
    )
)
LABEL_WORDS = frozenset(
    (
        *("category", "categoryid", "categoryname", "class", "classes", "classid", "classidx", "classindex"),
        *("classname", "groundtruth", "gt", "label", "labelid", "labelidx", "labelindex", "labelname", "labels"),
        *("target", "targets", "truth", "y"),
    )
)
_INDEX_WORDS = frozenset(("", "index", "unnamed0", "row", "rownames"))
_DRIVE = re.compile(r"^[A-Za-z]:/")
_DELIMITERS = re.compile(r"[;\t|\"]")  # in a folder of a path: the line was split at something else
_NUMBER = re.compile(r"(\d{1,18})(?:\.0+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTable:
    """The lines of a table that name a picture.

    Attributes:
        title: of the table, for sentences.
        columns: names of the columns beside the one that names pictures; their numbers from 0 without a header.
        rows: (path of the picture, one text for each of ``columns``), blank cells included. A picture may come twice.
        has_header: whether ``columns`` are written in the table.
        notes: sentences on what was detected or left out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    has_header: bool
    notes: tuple[str, ...] = ()


def read_label_table(source: PictureSource, table: str, common: str = "") -> LabelTable:
    """Read the table at path ``table`` in ``source``; ``common`` is the folder that holds all pictures.

    The column that names the pictures is found by the pictures, wherever it stands; a first line that names none is a
    header unless it looks like the others. A column that counts the rows is left out. Raises InvalidDataset where there
    is no such table, it cannot be read, it names no picture, or two columns may name them.
    """
    shown = printable(table)
    names = PictureNames(source.contents.pictures, str(PurePosixPath(table).parent).removeprefix("."), common)
    try:
        read = read_table(
            read_beside(source, table),
            score=lambda rows: max(each.distinct for each in _by_column(rows, names).values()),
        )
        return _Reading(shown, read, names).result(len(source.contents.pictures))
    except TableError as error:
        raise InvalidDataset(f"The table {shown} cannot be read. {error} Write lines such as file,label.") from error


def _by_column(table: Table, names: PictureNames) -> dict[int, Matched]:
    """Return the pictures that the cells of each column mean; other spellings count if no column is exact."""
    width = len(table.rows[0])
    # file names stand in one of the first columns, or in one of the last few
    outer = [place for place in range(width) if place < 40 or place >= width - 3]
    cells = {place: [row[place] for row in table.rows] for place in outer}
    as_written = {place: names.match(column, exact=True) for place, column in cells.items()}
    if max(each.distinct for each in as_written.values()) >= _NEARLY_UNIQUE * (len(table.rows) - 1) > 0:
        return as_written
    return {place: names.match(column) for place, column in cells.items()}


class _Reading:
    """A table whose columns are being told apart."""

    def __init__(self, shown: str, table: Table, names: PictureNames) -> None:
        self._shown, self._rows, self._table = shown, table.rows, table
        self._matched = _by_column(table, names)

    def result(self, num_pictures: int) -> LabelTable:
        place = self._file_column(num_pictures)
        found = self._matched[place]
        has_header = found.pictures[0] is None and self._is_header(place)
        others = self._other_columns(place, has_header)
        cells = zip(*([row[each] for row in self._rows] for each in others), strict=True)
        named = [(picture, row) for picture, row in zip(found.pictures, cells, strict=True) if picture is not None]
        missing = [
            row[place]
            for row, picture in zip(self._rows[has_header:], found.pictures[has_header:], strict=True)
            if picture is None
        ]
        columns = [self._rows[0][each] if has_header else "" for each in others]
        return LabelTable(
            title=self._shown,
            columns=tuple(name or str(index) for index, name in enumerate(columns)),
            rows=tuple(named),
            has_header=has_header,
            notes=tuple(self._notes(found, has_header, missing, num_pictures - found.distinct)),
        )

    def _file_column(self, num_pictures: int) -> int:
        best = max(each.distinct for each in self._matched.values())
        if not best:
            first = listed(dict.fromkeys(row[0] for row in self._rows))
            raise InvalidDataset(
                f"{self._shown} names none of the {plural(num_pictures, 'picture')}: expected lines such as "
                f"'cats/1.jpg,cat', found {first}. Write the names of the pictures as their files have them."
            )
        contenders = [
            place
            for place, each in self._matched.items()
            if each.num_exact or (each.distinct and 2 * each.distinct >= best)
        ]
        ranks = {place: self._rank(place) for place in contenders}
        contenders = [place for place in contenders if ranks[place] == max(ranks.values())]
        if any(self._matched[place].pictures != self._matched[contenders[0]].pictures for place in contenders):
            columns = listed(self._rows[0][place] or f"column {place + 1}" for place in contenders)
            raise InvalidDataset(
                f"{len(contenders)} columns of {self._shown} may name the pictures: {columns}. Keep the right one and "
                "call it file."
            )
        return contenders[0]

    def _rank(self, place: int) -> tuple[bool, ...]:
        """Return what speaks for a column of names: nearly unique, no index, no label by its name, and so on."""
        key, matched = column_key(self._rows[0][place]), self._matched[place]
        return (
            matched.distinct >= _NEARLY_UNIQUE * sum(picture is not None for picture in matched.pictures),
            not (key in _INDEX_WORDS and self._counts_rows(place)),
            key not in LABEL_WORDS,
            key in _FILE_WORDS,
            matched.num_exact > 0,
        )

    def _other_columns(self, file_column: int, has_header: bool) -> list[int]:
        """Return the columns that may hold labels: not empty, and no count of the rows where there are others."""
        others = [
            place
            for place in range(len(self._rows[0]))
            if place != file_column and any(row[place] for row in self._rows[has_header:])
        ]
        found = [place for place in others if not self._counts_rows(place)] or others
        if not found:
            raise InvalidDataset(
                f"Each line of {self._shown} must hold a file and a label; beside the names of pictures there is "
                f"nothing, as in {self._table.quoted(0)!r}."
            )
        return found

    def _counts_rows(self, place: int) -> bool:
        """Return whether a column holds 0, 1, 2, … or 1, 2, 3, … below a header of pandas or R, or none at all."""
        first, cells = self._rows[0][place], [row[place] for row in self._rows]
        if column_key(first) in _INDEX_WORDS:
            cells = cells[1:]
        return any(all(cell == str(start + index) for index, cell in enumerate(cells)) for start in (0, 1))

    def _is_header(self, place: int) -> bool:
        """Return whether the first line, which names no picture, is none that names a missing one."""
        first, others = self._rows[0], self._rows[1:]
        if not others or has_picture_suffix(first[place]) or "/" in first[place]:
            return False
        if {column_key(cell) for cell in first} & (_FILE_WORDS | LABEL_WORDS):
            return True
        labels = [(cell, {row[each] for row in others}) for each, cell in enumerate(first) if each != place]
        return not any(cell in below for cell, below in labels)

    def _notes(self, found: Matched, has_header: bool, missing: Sequence[str], num_unlisted: int) -> Iterator[str]:
        yield f"Labels are read from {self._shown}."
        yield from self._table.notes
        if has_header and not {column_key(cell) for cell in self._rows[0]} & (_FILE_WORDS | LABEL_WORDS):
            yield f"The first line of it, {self._table.quoted(0)!r}, was taken as a header."
        if found.num_spelled:
            named = plural(found.num_spelled, "picture")
            yield f"{named} matched to a name in it without regard to capitals and suffix."
        if missing:
            lines = plural(len(missing), "line of it names", "lines of it name")
            yield f"{lines} no picture: {listed(filter(None, missing))}."
        if num_unlisted:
            yield f"{plural(num_unlisted, 'picture')} without a line in it left out."


# ---- names of pictures


@dataclass(slots=True, eq=False)
class Matched:
    """Pictures that the cells of one column mean.

    Attributes:
        pictures: of each cell; None where it means none.
        num_exact: how many different cells name a picture as its path is written.
        num_spelled: how many do in another spelling.
    """

    pictures: list[str | None]
    num_exact: int
    num_spelled: int

    @property
    def distinct(self) -> int:
        """Number of pictures that are named."""
        return len({picture for picture in self.pictures if picture is not None})


class PictureNames:
    """The names under which a table may list the ``pictures`` of a folder or archive.

    A picture is named by its path in the archive, by its path from the table's ``folder`` or from the folder that holds
    all pictures, ``common``, or by its bare name where only one picture has it. What no path is written like is looked
    for without regard to capitals, suffixes, zeros before a number, and folders that are not here. Unicode is compared
    in its composed form (NFC). A name that two pictures have in one spelling names neither.
    """

    def __init__(self, pictures: Iterable[str], folder: str, common: str) -> None:
        names = list(pictures)
        starts = dict.fromkeys(start for start in (f"{folder}/" if folder else "", common) if start)
        self._whole = [[(name, name) for name in names]]
        self._whole += [[(name[len(s) :], name) for name in names if name.startswith(s)] for s in starts]
        self._bare = [(name.rpartition("/")[2], name) for name in names]
        self._kept: dict[Callable[[str], str], tuple[dict[str, str | None], dict[str, str | None]]] = {}

    def match(self, cells: Sequence[str], *, exact: bool = False) -> Matched:
        """Return the picture that each of ``cells`` means; with ``exact``, only those that are written alike."""
        names = {cell: _cleaned(cell) for cell in dict.fromkeys(cells) if cell}
        found = {cell: picture for cell, name in names.items() if (picture := self._look_up(name, _composed))}
        num_exact, claimed = len(found), set(found.values())
        for cell, name in () if exact else names.items():
            if cell not in found and (picture := self._look_up(name, _loose)) and picture not in claimed:
                found[cell] = picture
        return Matched(
            pictures=[found.get(cell) for cell in cells], num_exact=num_exact, num_spelled=len(found) - num_exact
        )

    def _look_up(self, name: str, key_of: Callable[[str], str]) -> str | None:
        """Return the picture of a name: bare names have no folder, and other folders need whole paths."""
        if key_of not in self._kept:
            whole = _index(self._whole, key_of)
            self._kept[key_of] = whole, _index([self._bare], key_of) | whole
        whole, known = self._kept[key_of]
        picture = known.get(key_of(name))
        if picture is None and not _DELIMITERS.search(name):
            picture = next((each for part in _inner_paths(name) if (each := whole.get(key_of(part)))), None)
        return picture


def _index(forms: Iterable[Iterable[tuple[str, str]]], key_of: Callable[[str], str]) -> dict[str, str | None]:
    """Return the picture of each key, None where two have it; earlier forms win."""
    known: dict[str, str | None] = {}
    for paths in forms:
        own: dict[str, str | None] = {}
        for path, picture in paths:
            key = key_of(path)
            own[key] = picture if own.get(key, picture) == picture else None
        known = own | known
    known.pop("", None)
    return known


def has_picture_suffix(name: str) -> bool:
    """Return whether ``name`` ends like the file of a picture."""
    return name[name.rfind(".") :].lower() in PICTURE_SUFFIXES


def _cleaned(name: str) -> str:
    """Return a name with forward slashes, composed letters, and without a drive or leading ``./``."""
    return _DRIVE.sub("", _composed(name).replace("\\", "/")).removeprefix("./").lstrip("/")


def _composed(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _inner_paths(name: str) -> Iterator[str]:
    """Yield the path without its first folder, its first two, and so on.

    >>> list(_inner_paths("a/b/c.png"))
    ['b/c.png', 'c.png']
    """
    for _ in range(min(50, name.count("/"))):  # folders of a path
        name = name.partition("/")[2]
        yield name


def _loose(path: str) -> str:
    """Return a path in small letters without the suffix of a picture, or the number that it is.

    >>> _loose("Val/A.PNG"), _loose("00012.jpg"), _loose("12.0")
    ('val/a', '12', '12')
    """
    stem = _composed(path.rpartition(".")[0] if has_picture_suffix(path) else path).casefold()
    number = _NUMBER.fullmatch(stem)
    return str(int(number[1])) if number else stem
