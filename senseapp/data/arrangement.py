"""How pictures are arranged: in class folders, beside a table of labels, or without labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from senseapp.core.texts import listed, plural
from senseapp.data.contents import Contents, Entry, PictureSource
from senseapp.data.label_columns import single_labels
from senseapp.data.label_sets import says_several, several_labels
from senseapp.data.label_tables import read_label_table
from senseapp.tasks import LabelTruth, Layout

_TABLE_NAME = "labels.csv"
_SPLITS = ("val", "valid", "validation", "test", "testing", "eval", "train", "training")  # the first found is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The pictures in the order of their names, and what their places say about their labels.

    Attributes:
        layout: where labels come from, if anywhere.
        entries: the pictures.
        labels: of each picture, as the folder or table writes it; empty if unlabelled.
        several: of each picture, where several labels may be true of one; ``labels`` are empty then.
        label_names: all labels; those of folders (of empty ones too) and tables sorted, those of an image set and of
            columns of 0 and 1 in their own order.
        notes: sentences on what was chosen or left out.
    """

    layout: Layout
    entries: tuple[Entry, ...]
    labels: tuple[str, ...] = ()
    several: tuple[LabelTruth, ...] = ()
    label_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def arrange(source: PictureSource, *, table: str = "", with_labels: bool = True, several: bool = False) -> Arrangement:
    """Find out how the pictures of ``source`` are arranged.

    Folders around everything else are skipped. Of ``train``, ``val`` and ``test`` folders one is taken: pictures
    that the network was not trained on, if there are any.

    Args:
        source: the folder or archive.
        table: path in it of a table ``file,label``; empty takes ``labels.csv`` if there is one at the top.
        with_labels: False takes every picture and no label.
        several: whether a table is read for several labels of each picture, even if it does not say so by itself.

    Raises:
        InvalidDataset: the table does not exist, cannot be read, or names no picture.
    """
    contents = source.contents
    if not with_labels:
        return Arrangement(layout="unlabelled", entries=_in_order(contents.pictures.values()))
    table = table or _default_table(contents)
    if table:
        return _by_table(source, table, several=several)
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


def _by_table(source: PictureSource, table: str, *, several: bool) -> Arrangement:
    read = read_label_table(source, table, _common_prefix(source.contents, ""))
    if several or says_several(read):
        sets = several_labels(read)
        entries = _in_order(source.contents.pictures[name] for name in sets.truths)
        return Arrangement(
            layout="table",
            entries=entries,
            several=tuple(sets.truths[entry.name] for entry in entries),
            label_names=sets.names,
            notes=sets.notes,
        )
    found = single_labels(read)
    entries = _in_order(source.contents.pictures[name] for name in found.labels)
    labels = tuple(found.labels[entry.name] for entry in entries)
    return Arrangement(
        layout="table",
        entries=entries,
        labels=labels,
        label_names=tuple(sorted(set(labels))),
        notes=found.notes,
    )
