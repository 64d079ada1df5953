"""The listing of a folder or archive: pictures, label tables, other files and folders, and what is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from senseapp.core.errors import InvalidDataset, NoPictures
from senseapp.core.texts import first_names, listed, plural, printable

PICTURE_SUFFIXES = frozenset(
    (
        *(".bmp", ".gif", ".heic", ".heif", ".jfif", ".jpe", ".jpeg", ".jpg"),
        *(".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"),
    )
)
_ARCHIVE_SUFFIXES = frozenset((".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip"))
_TABLE_SUFFIXES = frozenset((".csv", ".tsv", ".txt"))
UNLABELLED = "There are no labels: outputs are compared with the original model's."
"""Note on images that are measured without labels."""
_ANNOTATIONS = (".csv", ".tsv", ".json", ".jsonl", ".xml")
_DRIVE = re.compile("[A-Za-z]:")
_JUNK = frozenset(("__macosx", "@eadir", "thumbs.db", "desktop.ini"))


class Unreadable(Exception):
    """A file that cannot be used as a picture and is left out of the run; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file; ``position`` says where it lies in an archive."""

    name: str
    position: int


class PictureSource(Protocol):
    """A folder or archive whose files can be read one by one, in any order.

    Attributes:
        foreign: whether anybody may have made its files, so that they are decoded in a process that can be ended.
    """

    title: str
    contents: Contents
    foreign: bool

    def read(self, entry: Entry) -> bytes:
        """Return the bytes of one file.

        Raises:
            Unreadable: it is too large, damaged or gone.
        """
        ...

    def close(self) -> None:
        """Close the files."""
        ...


@dataclass(slots=True)
class Contents:
    """A listing that grows while a folder or archive is walked.

    Attributes:
        pictures: files with the name of an image format, by path with forward slashes.
        tables: CSV, TSV and text files, any of which may be a table of labels, by path.
        others: all other files but archives, which may hold annotations, by path.
        folders: paths of all folders, also of empty ones.
        links: links, devices and other things that are not plain files.
    """

    pictures: dict[str, Entry] = field(default_factory=dict)
    tables: dict[str, Entry] = field(default_factory=dict)
    others: dict[str, Entry] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    links: int = 0
    _repeated: int = 0
    _archives: int = 0
    _read: set[str] = field(default_factory=set)
    _aside: dict[str, Entry] = field(default_factory=dict)

    def entry(self, name: str) -> Entry | None:
        """Return the file at path ``name``, which is no longer counted as left out; None where there is none."""
        self._read.add(name)
        kinds = (self.pictures, self._aside, self.tables, self.others)
        return next((found for kind in kinds if (found := kind.get(name)) is not None), None)

    def set_aside(self, names: Iterable[str]) -> None:
        """Take files that annotate pictures, or belong to annotations, out of the pictures to measure on."""
        for name in names:
            self._read.add(name)
            if name in self.pictures:
                self._aside[name] = self.pictures.pop(name)

    def offered_tables(self) -> tuple[str, ...]:
        """Return the tables to choose from: text files only where there are few, not one for each picture."""
        texts = [name for name in self.tables if name.lower().endswith(".txt")]
        # more text files are annotations, one for each picture, and no tables to choose from
        left_out = set(texts) if len(texts) > 20 else set()
        return tuple(sorted(name for name in self.tables if name not in left_out))

    def add_folder(self, name: str) -> None:
        """Note a folder and the folders around it."""
        if not _is_junk(name):
            parts = name.split("/")
            self.folders.update("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))

    def add_file(self, name: str, position: int) -> None:
        """Note one plain file; a name that comes twice counts once, with its last contents."""
        folder, _, file = name.rpartition("/")
        if folder and folder not in self.folders:
            self.add_folder(folder)
        if (folder and folder not in self.folders) or _is_junk(file):
            return
        suffix = _suffix(file)
        if suffix in PICTURE_SUFFIXES or suffix in _TABLE_SUFFIXES:
            kept = self.tables if suffix in _TABLE_SUFFIXES else self.pictures
            self._repeated += name in kept
            kept[name] = Entry(name, position)
        elif suffix in _ARCHIVE_SUFFIXES:
            self._archives += 1
        else:
            self.others[name] = Entry(name, position)

    def require_pictures(self, title: str) -> None:
        """Raise InvalidDataset if there is not one picture."""
        if self.pictures:
            return
        about = [name for name in (*self.tables, *self.others) if name.lower().endswith(_ANNOTATIONS)]
        if about:
            raise NoPictures(
                f"{first_names(sorted(about))} came without pictures. Add the pictures, loose or as a zip: JPEG, PNG, "
                "WebP, TIFF, BMP, GIF or PPM."
            )
        reason = "; ".join(note.rstrip(".") for note in self.notes()) or "it is empty"
        advice = " Unpack the archives inside it first." if self._archives else ""
        raise InvalidDataset(
            f"There are no pictures in {title} ({reason}). Bring JPEG, PNG, WebP, TIFF, BMP, GIF or PPM files, "
            f"best in one folder per class.{advice}"
        )

    def notes(self) -> tuple[str, ...]:
        """Return one sentence for each kind of thing that is left out."""
        notes: list[str] = []
        unread = sorted(name for name in self.others if name not in self._read and name.endswith(_ANNOTATIONS))
        texts = [name for name in self.tables if name.lower().endswith(".txt")]
        others = Counter(_suffix(name) for name in (*texts, *self.others) if name not in {*self._read, *unread})
        if unread:
            notes.append(
                f"Labels are not read from {first_names(unread)}: boxes, masks and points are labels of detectors and "
                "of segmentation. Write classes as lines file,label in labels.csv."
            )
        if others:
            kinds = first_names([suffix or "no suffix" for suffix, _ in others.most_common()], 4)
            notes.append(f"{plural(others.total(), 'other file')} left out: {kinds}.")
        if self._archives:
            notes.append(f"{plural(self._archives, 'archive')} inside not opened.")
        if self.links:
            notes.append(f"{plural(self.links, 'link or special file', 'links or special files')} left out.")
        if self._repeated:
            notes.append(f"{plural(self._repeated, 'file name')} used twice: the last file of each name is taken.")
        return tuple(notes)


def read_beside(source: PictureSource, path: str) -> bytes:
    """Return a file of labels or annotations; raises InvalidDataset where it is not there or cannot be read."""
    entry = source.contents.entry(path)
    if entry is None:
        tables = listed(source.contents.offered_tables())
        there = f"; tables there: {tables}. Choose one of them" if tables else ""
        raise InvalidDataset(f"There is no file {printable(path)} in {source.title}{there}.")
    try:
        return source.read(entry)
    except Unreadable as error:
        raise InvalidDataset(f"The file {printable(path)} cannot be read ({error}).") from error


def _suffix(name: str) -> str:
    stem, dot, ending = name.rpartition("/")[2].rpartition(".")
    return dot + ending.lower() if stem else ""


def _is_junk(name: str) -> bool:
    """Return whether this is what operating systems leave behind: hidden files, previews, Mac resource forks."""
    return any(part.startswith(".") or part.lower() in _JUNK for part in name.split("/"))


def safe_member_name(name: str, title: str) -> str:
    """Return the name of an archive member as a relative path with forward slashes; '' for the archive itself.

    Nothing is ever written under these names. An archive that holds such a name was made to do harm, or by a
    broken program, so it is refused as a whole.

    Raises:
        InvalidDataset: the name is absolute, has a drive letter, or climbs out of the archive.
    """
    absolute = name.startswith(("/", "\\"))
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if absolute or ".." in parts or "\0" in name or (parts and _DRIVE.fullmatch(parts[0])):
        raise InvalidDataset(
            f"{title} holds the file name {printable(name)!r}, which leads outside of the archive. "
            "Make the archive again from inside the folder of images."
        )
    return "/".join(parts)
