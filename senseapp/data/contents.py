"""The listing of a folder or archive: pictures, label tables, other files and folders, and what is left out.

Folders are listed here, without what lies outside of those that may be read; archives in
:mod:`senseapp.data.archives`.
"""

import filecmp
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from senseapp.core.errors import InvalidDataset, NoPictures
from senseapp.core.files import MB
from senseapp.core.texts import first_names, listed, plural, printable
from senseapp.records.spec import DataSpec

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


def are_same_images(one: DataSpec, other: DataSpec) -> bool:
    """Return whether both come from one place, or from archives with the same bytes: a file may be uploaded twice."""
    if (one.kind, one.name, one.path) == (other.kind, other.name, other.path):
        return True
    paths = Path(one.path), Path(other.path)
    return one.kind == other.kind == "archive" and all(map(Path.is_file, paths)) and filecmp.cmp(*paths, shallow=False)


class Unreadable(Exception):
    """A file that cannot be used as a picture and is left out of the run; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file; ``position`` says where it lies in an archive."""

    name: str
    position: int


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

    def notes(self) -> Iterator[str]:
        """Yield one sentence for each kind of thing that is left out."""
        unread = sorted(name for name in self.others if name not in self._read and name.endswith(_ANNOTATIONS))
        texts = [name for name in self.tables if name.lower().endswith(".txt")]
        others = Counter(_suffix(name) for name in (*texts, *self.others) if name not in {*self._read, *unread})
        if unread:
            yield (
                f"Labels are not read from {first_names(unread)}: boxes, masks and points are labels of detectors and "
                "of segmentation. Write classes as lines file,label in labels.csv."
            )
        if others:
            kinds = first_names([suffix or "no suffix" for suffix, _ in others.most_common()], 4)
            yield f"{plural(others.total(), 'other file')} left out: {kinds}."
        if self._archives:
            yield f"{plural(self._archives, 'archive')} inside not opened."
        if self.links:
            yield f"{plural(self.links, 'link or special file', 'links or special files')} left out."
        if self._repeated:
            yield f"{plural(self._repeated, 'file name')} used twice: the last file of each name is taken."


class PictureSource(ABC):
    """A folder or archive, called ``title``, whose files can be read one by one, in any order, until it is closed."""

    foreign = True
    """Whether anybody may have made its files, so that they are decoded in a process that can be ended."""

    def __init__(self, title: str) -> None:
        self.title = printable(title)
        self.contents = Contents()
        self.close: Callable[[], None] = lambda: None

    @abstractmethod
    def read(self, entry: Entry) -> bytes:
        """Return the bytes of one file; raises Unreadable where it is too large, damaged or gone."""


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


def common_prefix(pictures: Iterable[str], prefix: str) -> str:
    """Return ``prefix`` extended by each folder that holds everything and at least one more level of folders."""
    names = [name for name in pictures if name.startswith(prefix)]
    while names:
        firsts = {name[len(prefix) :].partition("/")[0] for name in names}
        longer = f"{prefix}{next(iter(firsts))}/"
        if len(firsts) > 1 or not all("/" in name[len(longer) :] for name in names):
            return prefix
        prefix = longer
    return prefix


def safe_member_name(name: str, title: str) -> str:
    """Return the name of an archive member as a relative path with forward slashes; '' for the archive itself.

    Nothing is ever written under these names. An archive that holds such a name was made to do harm, or by a broken
    program, so it is refused as a whole. Raises InvalidDataset where the name is absolute, has a drive letter, or
    climbs out of the archive.
    """
    absolute = name.startswith(("/", "\\"))
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if absolute or ".." in parts or "\0" in name or (parts and _DRIVE.fullmatch(parts[0])):
        raise InvalidDataset(
            f"{title} holds the file name {printable(name)!r}, which leads outside of the archive. "
            "Make the archive again from inside the folder of images."
        )
    return "/".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Limits that an honest set of images stays under (ImageNet's validation set: 50,000 files, 6.7 GB).

    Attributes:
        members: files and folders.
        total_bytes: all files together, unpacked.
        file_bytes: one picture; a larger one is left out.
        ratio: unpacked to packed size. Pictures are compressed already, so an archive gains little; blank
            bitmaps reach about 1,000, and are few.
        small_bytes: an archive that unpacks to less is never a bomb, whatever its ratio.
    """

    members: int = 200_000
    total_bytes: int = 20_000 * MB
    file_bytes: int = 64 * MB
    ratio: float = 100.0
    small_bytes: int = 100 * MB

    def check_members(self, count: int, title: str) -> None:
        """Raise InvalidDataset if there are too many files."""
        if count > self.members:
            raise InvalidDataset(
                f"{title} holds more than {self.members:,} files. A few hundred images are usually enough: "
                "bring a part of them."
            )

    def check_total(self, total_bytes: int, packed_bytes: int, title: str) -> None:
        """Raise InvalidDataset if an archive unpacks to too much, or to far more than it takes."""
        if total_bytes > self.total_bytes:
            raise InvalidDataset(
                f"{title} unpacks to more than {self.total_bytes / 1e9:g} GB. A few hundred images are usually "
                "enough: bring a part of them."
            )
        if total_bytes > self.small_bytes and total_bytes > self.ratio * packed_bytes:
            raise InvalidDataset(
                f"{title} unpacks to {total_bytes // max(packed_bytes, 1):,} times its size, more than the "
                f"{self.ratio:g} times allowed: this looks like a decompression bomb. Pack the images again."
            )

    def check_file(self, file_bytes: int) -> None:
        """Raise Unreadable if one picture is too large a file."""
        if file_bytes > self.file_bytes:
            raise Unreadable(f"larger than {self.file_bytes // MB} MB")


# ---- folders

_FOLDER_LIMITS = ArchiveLimits(members=5_000_000)  # whoever runs the server put them there: no bomb, but ImageNet


def resolve_readable(path: str, roots: Sequence[Path]) -> Path:
    """Return the real path, links followed, of what exists in one of ``roots``; none allow any. Else InvalidDataset."""
    try:
        resolved = Path(path).expanduser().resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidDataset(f"There is no folder or archive at {printable(path)!r}. Check the path.") from error
    if not _is_under(resolved, [root.resolve() for root in roots]):
        raise InvalidDataset(
            f"{printable(path)!r} is outside of the folders that this server may read. "
            "Upload the images, or ask for their folder to be added to SENSEAPP_DATA_ROOTS."
        )
    return resolved


def _is_under(path: Path, roots: Sequence[Path]) -> bool:
    return not roots or any(path.is_relative_to(root) for root in roots)


class FolderSource(PictureSource):
    """A folder, listed with everything below it.

    Links are followed as long as they stay inside ``roots`` (none given: anywhere); each folder is walked once.

    ``folder`` is a real path, see :func:`resolve_readable`. Raises InvalidDataset where this is not a folder, it may
    not be read, or it holds too many files.
    """

    def __init__(self, folder: Path, roots: Sequence[Path] = (), limits: ArchiveLimits | None = None) -> None:
        super().__init__(folder.name)
        self._folder = folder
        self._roots = [root.resolve() for root in roots]
        self._limits = limits or _FOLDER_LIMITS
        self._walked: set[tuple[int, int]] = set()
        if not folder.is_dir():
            raise InvalidDataset(f"{self.title} is not a folder. Choose a folder of images, or a zip or tar archive.")
        try:
            self._is_new(self._folder.stat())
            for position, name in enumerate(self._files("")):
                self._limits.check_members(position + 1, self.title)
                self.contents.add_file(name, position)
        except OSError as error:
            raise InvalidDataset(
                f"The folder {self.title} cannot be listed ({error.strerror}). Check that the app may read it."
            ) from error

    def _files(self, prefix: str) -> Iterator[str]:
        """Yield the paths of all plain files below ``prefix``, sorted within each folder."""
        pending = [prefix]
        while pending:
            prefix = pending.pop()
            folders: list[str] = []
            with os.scandir(self._folder / prefix) as children:
                for child in sorted(children, key=lambda child: child.name):
                    name = prefix + child.name
                    if not self._is_allowed(child):
                        self.contents.links += 1
                    elif child.is_dir():
                        folders += [name + "/"] if self._is_new(child.stat()) else []
                        self.contents.add_folder(name)
                    else:
                        yield name
            pending += reversed(folders)

    def _is_allowed(self, child: os.DirEntry[str]) -> bool:
        """Return whether this is a file or folder, or a link to one inside the roots; opening others could block."""
        try:
            if child.is_symlink() and not _is_under(Path(child.path).resolve(strict=True), self._roots):
                return False
            return child.is_file() or child.is_dir()
        except (OSError, RuntimeError):  # a link to nothing, or to itself
            return False

    def _is_new(self, folder: os.stat_result) -> bool:
        """Return whether this folder was not walked yet: links can form circles."""
        identity = (folder.st_dev, folder.st_ino)
        is_new = identity not in self._walked
        self._walked.add(identity)
        return is_new

    def read(self, entry: Entry) -> bytes:
        """Return the bytes of one file; raises Unreadable where it is too large, or may not be read."""
        try:
            with (self._folder / entry.name).open("rb") as file:
                self._limits.check_file(os.fstat(file.fileno()).st_size)
                return file.read()
        except OSError as error:
            raise Unreadable(error.strerror or "cannot be read") from error
