"""How pictures are arranged: in class folders, beside a table of labels or annotations, or without labels."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import listed, plural
from senseapp.data.annotations import Annotations, find_annotations, set_masks_aside
from senseapp.data.contents import Contents, Entry, PictureSource, common_prefix
from senseapp.data.label_columns import labels_in
from senseapp.data.label_tables import read_label_table
from senseapp.tasks.annotations import LABEL_FOLDERS, PICTURE_FOLDERS, AnnotationReader
from senseapp.tasks.labels import LabelTruth, Layout

_TABLE_NAMES = ("labels.csv", "labels.tsv")  # the first found is taken; labels.txt often lists the classes
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
        choices: files and folders of annotations to choose from.
        annotations: of the pictures, all of which have one; None for pictures without.
    """

    layout: Layout
    entries: tuple[Entry, ...]
    labels: tuple[str, ...] = ()
    several: tuple[LabelTruth, ...] = ()
    label_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    annotations: Annotations | None = None


def arrange(
    source: PictureSource,
    *,
    table: str = "",
    with_labels: bool = True,
    several: bool = False,
    classes: Collection[str] = (),
) -> Arrangement:
    """Find out how the pictures of ``source`` are arranged.

    Folders around everything else are skipped. Of ``train``, ``val`` and ``test`` folders one is taken: pictures
    that the network was not trained on, if there are any. Masks in a folder beside the pictures are left out.

    ``table`` is the path in it of a table ``file,label``; empty takes ``labels.csv`` or ``labels.tsv`` if there is one
    at the top. With ``several`` it is read for several labels of each picture, even if it does not say so by itself.
    Without ``with_labels`` every picture is taken and no label. ``classes`` are folders that a person has confirmed as
    classes, of which none is taken for one of masks. Raises InvalidDataset where the table does not exist, cannot be
    read, or names no picture.
    """
    contents = source.contents
    masks = () if any(name.casefold() in LABEL_FOLDERS for name in classes) else set_masks_aside(contents)
    if not with_labels:
        return Arrangement(layout="unlabelled", entries=_in_order(contents.pictures.values()), notes=masks)
    table = table or _default_table(contents)
    if table:
        found = _by_table(source, table, several=several)
        return replace(found, notes=(*masks, *found.notes))
    split, notes = _choose_split(contents.pictures, common_prefix(contents.pictures, ""))
    notes = (*masks, *notes)
    found = _by_folder(contents, common_prefix(contents.pictures, split), notes, beside_masks=bool(masks))
    return _by_only_table(source, found, several=several) if found.layout == "unlabelled" else found


def arrange_annotated(
    source: PictureSource, reader: AnnotationReader, *, chosen: str = "", with_labels: bool = True
) -> Arrangement:
    """Find out which pictures of ``source`` are annotated; only these are measured on, if there are any.

    Of folders ``train``, ``val`` and ``test`` one is taken, as for class folders. Masks that the reader does not read
    are no pictures. ``chosen`` is the path of the file or folder of annotations that a person chose. Without
    ``with_labels`` every picture is taken, and no annotation, whether their files are damaged or not. Raises
    InvalidDataset where a file for many pictures is damaged, or the chosen one does not exist.
    """
    contents = source.contents
    masks = () if reader.label_images else set_masks_aside(contents)
    try:
        annotations = find_annotations(source, reader, chosen=chosen)
    except InvalidDataset as error:
        if with_labels:
            raise
        every = _in_order(contents.pictures.values())
        return Arrangement(layout="unlabelled", entries=every, notes=(*masks, str(error)))
    found, every = annotations.found, _in_order(contents.pictures.values())
    if not with_labels:
        return Arrangement(layout="unlabelled", entries=every, choices=found.choices, notes=masks)
    annotated = [entry for entry in every if entry.name in annotations]
    if not annotated:
        notes = (*masks, *found.notes, f"No picture has {reader.words[1]}: {len(every):,} looked at.")
        return Arrangement(layout="unlabelled", entries=every, choices=found.choices, notes=notes)
    names = [entry.name for entry in annotated]
    split, notes = _choose_split(names, common_prefix(names, ""))
    entries = tuple(entry for entry in annotated if entry.name.startswith(split))
    without = sum(entry.name.startswith(split) for entry in every) - len(entries)
    if without:
        notes = (*notes, f"{plural(without, 'picture')} without {reader.words[1]} left out.")
    return Arrangement(
        layout="annotations",
        entries=entries,
        notes=(f"{plural(len(entries), 'picture')} with {reader.words[1]}.", *masks, *found.notes, *notes),
        choices=found.choices,
        annotations=annotations,
    )


def _in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.name.split("/")))


def _default_table(contents: Contents) -> str:
    there = {name.casefold(): name for name in contents.tables}
    wanted = (f"{place.casefold()}{name}" for place in _tops(contents) for name in _TABLE_NAMES)
    return next((there[name] for name in wanted if name in there), "")


def _tops(contents: Contents) -> tuple[str, ...]:
    """Return the paths at which a table of all pictures may lie."""
    return tuple(dict.fromkeys(("", common_prefix(contents.pictures, ""))))


def _by_only_table(source: PictureSource, unlabelled: Arrangement, *, several: bool) -> Arrangement:
    """Return the labels of the one table beside unlabelled pictures; else sentences on why such files give none."""
    tops, files = _tops(source.contents), (*source.contents.tables, *source.contents.others)
    tables = sorted(
        name for name in files if name[: name.rfind("/") + 1] in tops and name.lower().endswith((".csv", ".tsv"))
    )
    notes = []
    if len(tables) > 1:
        notes.append(f"Labels may be in {listed(tables)}: choose one of these tables (--labels).")
    elif tables:
        try:
            found = _by_table(source, tables[0], several=several)
            return replace(found, notes=(*unlabelled.notes, *found.notes))
        except InvalidDataset as error:
            notes.append(str(error))
    return replace(unlabelled, notes=(*unlabelled.notes, *notes))


def _choose_split(pictures: Iterable[str], prefix: str) -> tuple[str, tuple[str, ...]]:
    """Return the path of the split to measure on, and a note on the others; ``prefix`` itself without splits."""
    depths: dict[str, int] = {}
    for name in pictures:
        if name.startswith(prefix):
            first, *rest = name[len(prefix) :].split("/")
            depths[first] = max(depths.get(first, 0), len(rest))
    if len(depths) < 2 or any(first.lower() not in _SPLITS for first in depths):
        return prefix, ()
    # a test folder often has no class folders: its labels were kept back for a contest
    chosen = min(depths, key=lambda first: (depths[first] < 2, _SPLITS.index(first.lower())))
    others = listed(sorted(set(depths) - {chosen}))
    return f"{prefix}{chosen}/", (f"Taken from the folder {chosen}; not used: {others}.",)


def _by_folder(contents: Contents, prefix: str, notes: tuple[str, ...], *, beside_masks: bool) -> Arrangement:
    entries = _in_order(entry for name, entry in contents.pictures.items() if name.startswith(prefix))
    depth = prefix.count("/")
    firsts = [entry.name.split("/")[depth:] for entry in entries]
    heap = beside_masks and all(len(parts) < 2 or parts[0].casefold() in PICTURE_FOLDERS for parts in firsts)
    if heap or not any(len(parts) > 1 for parts in firsts):
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
    if beside_masks:
        empty = {name for name in empty if name.casefold() not in LABEL_FOLDERS}
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
    found = labels_in(read_label_table(source, table, common_prefix(source.contents.pictures, "")), several=several)
    entries = _in_order(source.contents.pictures[name] for name in found.several or found.single)
    return Arrangement(
        layout="table",
        entries=entries,
        labels=tuple(found.single[entry.name] for entry in entries) if found.single else (),
        several=tuple(found.several[entry.name] for entry in entries) if found.several else (),
        label_names=found.names,
        notes=found.notes,
    )
