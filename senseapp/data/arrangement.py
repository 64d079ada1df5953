"""How pictures are arranged: in class folders, beside a CSV table of labels, or without labels."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from senseapp.core.errors import InvalidDataset
from senseapp.core.wording import listed, plural, printable
from senseapp.data.contents import Contents, Entry, PictureSource, Unreadable
from senseapp.tasks import Layout

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
            f"{printable(table)} names none of the {plural(len(pictures), 'picture')}: expected lines such as "
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
        lines = plural(len(missing), "line of it names", "lines of it name")
        notes.append(f"{lines} no picture: {listed(missing)}.")
    if unlisted:
        notes.append(f"{plural(unlisted, 'picture')} without a line in it left out.")
    return tuple(notes)


_TABLE_NAME = "labels.csv"
_SPLITS = ("val", "valid", "validation", "test", "testing", "eval", "train", "training")  # the first found is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The pictures in the order of their names, and what their places say about their labels.

    Attributes:
        layout: where labels come from, if anywhere.
        entries: the pictures.
        labels: of each picture, as the folder or table writes it; empty if unlabelled.
        label_names: all labels; those of folders (of empty ones too) and tables sorted, those of an image set in
            its own order.
        notes: sentences on what was chosen or left out.
    """

    layout: Layout
    entries: tuple[Entry, ...]
    labels: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def arrange(source: PictureSource, *, table: str = "", with_labels: bool = True) -> Arrangement:
    """Find out how the pictures of ``source`` are arranged.

    Folders around everything else are skipped. Of ``train``, ``val`` and ``test`` folders one is taken: pictures
    that the network was not trained on, if there are any.

    Args:
        source: the folder or archive.
        table: path in it of a CSV ``file,label``; empty takes ``labels.csv`` if there is one at the top.
        with_labels: False takes every picture and no label.

    Raises:
        InvalidDataset: the table does not exist, cannot be read, or names no picture.
    """
    contents = source.contents
    if not with_labels:
        return Arrangement(layout="unlabelled", entries=_in_order(contents.pictures.values()))
    table = table or _default_table(contents)
    if table:
        return _by_table(source, table)
    prefix = _common_prefix(contents, "")
    split, notes = _choose_split(contents, prefix)
    return _by_folder(contents, _common_prefix(contents, split), notes)


def _in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.name.split("/")))


def _default_table(contents: Contents) -> str:
    places = ("", _common_prefix(contents, ""))
    return next((place + _TABLE_NAME for place in places if place + _TABLE_NAME in contents.tables), "")


def _common_prefix(contents: Contents, prefix: str) -> str:
    """Return ``prefix`` extended by each folder that holds everything and at least one more level of folders."""
    names = [name for name in contents.pictures if name.startswith(prefix)]
    while True:
        firsts = {name[len(prefix) :].partition("/")[0] for name in names}
        longer = f"{prefix}{next(iter(firsts))}/"
        if len(firsts) > 1 or not all("/" in name[len(longer) :] for name in names):
            return prefix
        prefix = longer


def _choose_split(contents: Contents, prefix: str) -> tuple[str, tuple[str, ...]]:
    """Return the path of the split to measure on, and a note on the others; ``prefix`` itself without splits."""
    depths: dict[str, int] = {}
    for name in contents.pictures:
        if name.startswith(prefix):
            first, *rest = name[len(prefix) :].split("/")
            depths[first] = max(depths.get(first, 0), len(rest))
    if len(depths) < 2 or any(first.lower() not in _SPLITS for first in depths):
        return prefix, ()
    # a test folder often has no class folders: its labels were kept back for a contest
    chosen = min(depths, key=lambda first: (depths[first] < 2, _SPLITS.index(first.lower())))
    others = listed(sorted(set(depths) - {chosen}))
    return f"{prefix}{chosen}/", (f"Taken from the folder {chosen}; not used: {others}.",)


def _by_folder(contents: Contents, prefix: str, notes: tuple[str, ...]) -> Arrangement:
    entries = _in_order(entry for name, entry in contents.pictures.items() if name.startswith(prefix))
    depth = prefix.count("/")
    firsts = [entry.name.split("/")[depth:] for entry in entries]
    if not any(len(parts) > 1 for parts in firsts):
        return Arrangement(layout="unlabelled", entries=entries, notes=notes)
    inside = [(entry, parts[0]) for entry, parts in zip(entries, firsts, strict=True) if len(parts) > 1]
    if len(inside) < len(entries):
        loose = plural(len(entries) - len(inside), "picture")
        notes = (*notes, f"{loose} outside of the class folders left out.")
    labels = tuple(label for _, label in inside)
    present = set(labels)
    empty = {
        folder.split("/")[depth]
        for folder in contents.folders
        if folder.startswith(prefix) and folder.count("/") >= depth
    } - present
    if empty:
        classes = plural(len(empty), "class folder holds", "class folders hold")
        notes = (*notes, f"{classes} no picture: {listed(sorted(empty))}.")
    return Arrangement(
        layout="class folders",
        entries=tuple(entry for entry, _ in inside),
        labels=labels,
        label_names=tuple(sorted(present | empty)),
        notes=notes,
    )


def _by_table(source: PictureSource, table: str) -> Arrangement:
    rows, notes = read_label_table(source, table)
    entries = _in_order(source.contents.pictures[name] for name in rows)
    labels = tuple(rows[entry.name] for entry in entries)
    return Arrangement(
        layout="table",
        entries=entries,
        labels=labels,
        label_names=tuple(sorted(set(labels))),
        notes=notes,
    )
