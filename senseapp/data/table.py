"""A CSV table that gives each picture its label."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from senseapp.data.contents import Entry, PictureSource, Unreadable
from senseapp.errors import InvalidDataset
from senseapp.wording import counted, listed, printable

_DELIMITERS = (",", ";", "\t")


def read_label_table(source: PictureSource, table: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the label of each picture that the table ``file,label`` names, and notes on what did not match.

    A file is named by its path in the archive, by its path beside the table, or by its bare name where only one
    picture has it. A first line that names no picture is a heading. Commas, semicolons and tabs separate.

    Raises:
        InvalidDataset: there is no such table, it is not text, it names no picture, or gives one two labels.
    """
    pictures = source.contents.pictures
    rows = _rows(_text(source, table), table)
    names = _names_of(pictures, PurePosixPath(table).parent)
    labels: dict[str, str] = {}
    missing: list[str] = []
    for number, (file, label) in enumerate(rows):
        name = names.get(file.replace("\\", "/").removeprefix("./"))
        if name is None:
            missing += [file] if number else []
        elif labels.setdefault(name, label) != label:
            raise InvalidDataset(f"{printable(table)} gives {printable(file)} two labels. Keep one line per picture.")
    if not labels:
        raise InvalidDataset(
            f"{printable(table)} names none of the {counted(len(pictures), 'picture')}: expected lines such as "
            f"'cats/1.jpg,cat', found {listed(missing) or 'none'}. Write file names as they are in {source.title}."
        )
    return labels, _notes(table, missing, unlisted=len(pictures) - len(labels))


def _text(source: PictureSource, table: str) -> str:
    entry: Entry | None = source.contents.tables.get(table)
    if entry is None:
        found = listed(sorted(source.contents.tables)) or "none"
        raise InvalidDataset(
            f"There is no table {printable(table)} in {source.title}; CSV files there: {found}. Choose one of them."
        )
    try:
        return source.read(entry).decode("utf-8-sig")
    except (Unreadable, UnicodeDecodeError) as error:
        raise InvalidDataset(
            f"The table {printable(table)} cannot be read ({error}). Save it as CSV in UTF-8, with lines file,label."
        ) from error


def _rows(text: str, table: str) -> list[tuple[str, str]]:
    first_line = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first_line.count)
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), delimiter=delimiter)]
    except csv.Error as error:
        raise InvalidDataset(f"The table {printable(table)} is not CSV ({error}). Write lines file,label.") from error
    rows = [row for row in rows if any(row)]
    uneven = next((row for row in rows if len(row) < 2 or not row[0] or not row[1]), None)
    if uneven is not None:
        raise InvalidDataset(
            f"Each line of {printable(table)} must hold a file and a label, got {printable(','.join(uneven))!r}."
        )
    return [(row[0], row[1]) for row in rows]


def _names_of(pictures: Iterable[str], folder: PurePosixPath) -> Mapping[str, str]:
    """Return the picture that each way to write a file name means; full paths win over bare names."""
    ordered = list(pictures)
    bare = [PurePosixPath(name).name for name in ordered]
    counts = Counter(bare)
    names = {short: name for short, name in zip(bare, ordered, strict=True) if counts[short] == 1}
    beside = f"{folder}/"
    names.update((name[len(beside) :], name) for name in ordered if name.startswith(beside))
    names.update((name, name) for name in ordered)
    return names


def _notes(table: str, missing: list[str], unlisted: int) -> tuple[str, ...]:
    notes = [f"Labels are read from {printable(table)}."]
    if missing:
        lines = counted(len(missing), "line of it names", "lines of it name")
        notes.append(f"{lines} no picture: {listed(missing)}.")
    if unlisted:
        notes.append(f"{counted(unlisted, 'picture')} without a line in it left out.")
    return tuple(notes)
