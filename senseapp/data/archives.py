"""Pictures in zip and tar archives, read without unpacking to disk.

Archives are hostile: names, sizes and numbers of entries are checked before a byte of a picture is read.
"""

from __future__ import annotations

import gzip
import stat
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import IO, cast
from zipfile import ZipInfo

from senseapp.core.errors import InvalidDataset
from senseapp.core.files import MB
from senseapp.core.foreign_zip import ZIP_DAMAGE, ForeignZip, GuardedStream, TooManyMembers, ZipRefused
from senseapp.core.texts import printable
from senseapp.data.contents import (
    PICTURE_SUFFIXES,
    ArchiveLimits,
    Entry,
    PictureSource,
    Unreadable,
    common_prefix,
    safe_member_name,
)
from senseapp.tasks.annotations import LABEL_FOLDERS

_ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!": "RAR",
    b"\x28\xb5\x2f\xfd": "Zstandard",
}
_PNG_COLOURS = 25  # byte of the header that says which: PNG specification, 11.2.1
_MASKS = (b"\0", b"\3")  # grey, and palette
_DAMAGE = (*ZIP_DAMAGE, tarfile.TarError)


def open_archive(path: Path, limits: ArchiveLimits | None = None) -> ZipSource | TarSource:
    """Open an archive, whose kind is determined by its first bytes, not by its name.

    Raises InvalidDataset where it is not a zip, tar or tar.gz, damaged, protected by a password, too large, or made to
    do harm.
    """
    limits = limits or ArchiveLimits()
    title = printable(path.name)
    if not path.is_file():
        raise InvalidDataset(f"{title} is not a file. Choose a zip or tar archive of images.")
    try:
        with path.open("rb") as file:
            start = file.read(tarfile.BLOCKSIZE)
    except OSError as error:
        raise InvalidDataset(f"{title} cannot be read ({error.strerror}). Check that the app may read it.") from error
    try:
        if start.startswith(_ZIP):
            return ZipSource(path, limits)
        if start.startswith(_GZIP) or start[257:262] == b"ustar":
            return TarSource(path, limits, gzipped=start.startswith(_GZIP))
    except _DAMAGE as error:
        raise InvalidDataset(
            f"{title} is damaged or cut short ({error}). Pack the images again, or upload it once more."
        ) from error
    if not start:
        raise InvalidDataset(f"{title} is empty. Choose a zip or tar archive of images.")
    kind = next((kind for magic, kind in _OTHERS.items() if start.startswith(magic)), None)
    found = f"is a {kind} file" if kind else "is not an archive"
    raise InvalidDataset(f"{title} {found}; images come in a zip, tar or tar.gz. Pack them as one of these.")


class ZipSource(PictureSource):
    """A zip archive whose names and sizes were found harmless.

    Zips stored in it count as unpacked beside its files; pages pack several uploaded files this way. What is inside
    ``masks.zip`` lies in a folder of that name, as masks beside the pictures of their name do. Raises InvalidDataset
    where it is protected by a password, too large, or with names that lead outside, and BadZipFile, OSError,
    ValueError, … where it is damaged.
    """

    def __init__(self, path: Path, limits: ArchiveLimits) -> None:
        super().__init__(path.name)
        self._limits = limits
        self._packed_bytes = path.stat().st_size
        self._num_members = self._total_bytes = self._num_inner = 0
        self._files: list[tuple[ForeignZip, ZipInfo]] = []  # by position
        with ExitStack() as until_listed:
            archive = self._opened(path)
            until_listed.callback(archive.close)
            files = list(self._listed(archive, self.title))
            masks = self._masks_among(files)
            named = _named_apart(files, masks).items() if self._num_inner or masks else files
            for name, position in named:
                self.contents.add_file(name, position)
            self.close = until_listed.pop_all().close  # it stays open for reading

    def _opened(self, file: Path | IO[bytes]) -> ForeignZip:
        try:
            return ForeignZip(file, most_members=self._limits.members)
        except TooManyMembers:
            self._limits.check_members(self._limits.members + 1, self.title)
            raise

    def _listed(self, archive: ForeignZip, title: str, depth: int = 0) -> Iterator[tuple[str, int]]:
        """Yield the files of an archive, and of those inside it, with their positions."""
        if archive.encrypted:
            raise InvalidDataset(f"{title} is protected by a password. Pack the images again without one.")
        self._num_members += len(archive.members)
        self._total_bytes += archive.total_bytes
        self._limits.check_members(self._num_members, self.title)
        self._limits.check_total(self._total_bytes, self._packed_bytes, self.title)
        for member in archive.members:
            name = safe_member_name(member.filename, title)
            if member.is_dir():
                if name and not depth:
                    self.contents.add_folder(name)
            elif stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
                self.contents.links += 1
            elif name and (inner := self._opened_inside(archive, name, member, depth)) is not None:
                stem = name[: -len(".zip")]
                folder = f"{stem}/" if stem.casefold() in LABEL_FOLDERS else ""
                inside = _unwrapped(list(self._listed(inner, printable(name), depth + 1)))
                yield from ((folder + each, position) for each, position in inside)
            elif name:
                self._files.append((archive, member))
                yield name, len(self._files) - 1

    def _opened_inside(self, archive: ForeignZip, name: str, member: ZipInfo, depth: int) -> ForeignZip | None:
        """Return a zip that is stored in another one; None for other files, and for one that cannot be read."""
        # up to 8 zips in one another, and 100 beside each other
        if not name.lower().endswith(".zip") or "/" in name or depth == 8 or self._num_inner == 100:
            return None
        try:
            stream = archive.window(member)
            inner = None if stream is None else self._opened(stream)
        except _DAMAGE:
            return None
        self._num_inner += inner is not None
        return inner

    def _masks_among(self, files: Iterable[tuple[str, int]]) -> set[int]:
        """Return the positions of grey and palette PNG files beside a picture of another kind with the same name."""
        same: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for name, position in files:
            stem, _, suffix = name.rpartition(".")
            if f".{suffix.lower()}" in PICTURE_SUFFIXES:
                same[stem].append((name, position))
        found: set[int] = set()
        for group in (group for group in same.values() if len(group) > 1):
            masks = {position for name, position in group if self._is_mask(Entry(name, position))}
            found |= masks if len(masks) < len(group) else set()
        return found

    def _is_mask(self, entry: Entry) -> bool:
        try:
            return entry.name.lower().endswith(".png") and self.read(entry)[_PNG_COLOURS : _PNG_COLOURS + 1] in _MASKS
        except Unreadable:
            return False

    def read(self, entry: Entry) -> bytes:
        """Return the bytes of one member; Unreadable where it is too large, damaged, or packed as is not read here."""
        archive, member = self._files[entry.position]
        self._limits.check_file(member.file_size)
        try:
            return archive.read(member)
        except ZipRefused as error:
            raise Unreadable(str(error)) from error
        except _DAMAGE as error:
            raise Unreadable("damaged in the archive") from error


def _unwrapped(files: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return files of an archive without the folders around those of all its pictures.

    >>> _unwrapped([("digits/0/a.png", 0), ("digits/1/b.png", 1), ("digits/labels.csv", 2)])
    [('0/a.png', 0), ('1/b.png', 1), ('labels.csv', 2)]
    """
    pictures = [name for name, _ in files if Path(name).suffix.lower() in PICTURE_SUFFIXES]
    around = common_prefix(pictures, "")
    return [(name.removeprefix(around), position) for name, position in files]


def _named_apart(files: Iterable[tuple[str, int]], masks: Collection[int]) -> dict[str, int]:
    """Return the position of each file under a name of its own: masks in a folder, and a number for repeated names.

    >>> _named_apart([("a.png", 0), ("a.png", 1), ("a.png", 2)], masks={1})
    {'a.png': 0, 'masks/a.png': 1, 'a-2.png': 2}
    """
    named: dict[str, int] = {}
    for name, position in files:
        wanted = f"{LABEL_FOLDERS[0]}/{name}" if position in masks else name
        stem, dot, suffix = wanted.rpartition(".")
        free = (f"{stem}-{number}{dot}{suffix}" for number in count(2))
        named[wanted if wanted not in named else next(each for each in free if each not in named)] = position
    return named


def _unpacked(path: Path, limits: ArchiveLimits) -> IO[bytes]:
    with ExitStack() as until_unpacked, gzip.open(path) as packed:
        unpacked = cast(IO[bytes], until_unpacked.enter_context(tempfile.TemporaryFile()))
        while chunk := packed.read(MB):
            unpacked.write(chunk)
            contents = (unpacked.tell() - MB) // 2  # at least: half may be headers, and the end is zeros
            limits.check_total(contents, path.stat().st_size, printable(path.name))
        unpacked.seek(0)
        until_unpacked.pop_all()
    return unpacked


class TarSource(PictureSource):
    """A tar archive whose names and sizes were found harmless.

    A gzipped one can only be read forward, so it is unpacked to a file that has no name. Raises InvalidDataset where it
    is too large, or with names that lead outside, and TarError, OSError, EOFError, … where it is damaged.
    """

    def __init__(self, path: Path, limits: ArchiveLimits, *, gzipped: bool) -> None:
        super().__init__(path.name)
        self._limits = limits
        self._sizes: dict[int, int] = {}
        with ExitStack() as until_listed:
            packed_bytes, total = path.stat().st_size, 0
            self._stream: IO[bytes] = _unpacked(path, limits) if gzipped else path.open("rb")
            until_listed.enter_context(self._stream)
            for count, member in enumerate(self._members(), start=1):
                total += member.size
                limits.check_members(count, self.title)
                limits.check_total(total, packed_bytes, self.title)
                self._list(member)
            self.close = until_listed.pop_all().close  # it stays open for reading

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """Yield the members; none is kept, so that memory does not grow with their number."""
        with tarfile.open(fileobj=cast(IO[bytes], _HeaderReader(self._stream)), mode="r:") as archive:
            while (member := archive.next()) is not None:
                yield member
                archive.members.clear()  # type: ignore[attr-defined]  # the usual way to walk a long archive
            self._stream.seek(archive.offset)
        # tarfile takes a broken header in the middle for the end; the true end is a block of zeros
        if (end := self._stream.read(tarfile.BLOCKSIZE)).strip(b"\0") or not end:
            raise tarfile.ReadError("its end is missing")

    def _list(self, member: tarfile.TarInfo) -> None:
        name = safe_member_name(member.name, self.title)
        if member.isdir():
            if name:
                self.contents.add_folder(name)
        elif not member.isreg() or member.issparse():
            self.contents.links += 1
        elif name:
            self._sizes[member.offset_data] = member.size
            self.contents.add_file(name, member.offset_data)

    def read(self, entry: Entry) -> bytes:
        """Return the bytes of one member; raises Unreadable where it is too large or damaged."""
        size = self._sizes[entry.position]
        self._limits.check_file(size)
        try:
            self._stream.seek(entry.position)
            content = self._stream.read(size)
        except _DAMAGE as error:
            raise Unreadable("damaged in the archive") from error
        if len(content) < size:
            raise Unreadable("cut short in the archive")
        return content


class _HeaderReader(GuardedStream):
    """The archive as tarfile may read it: header by header, as a name of any length can be stored in one."""

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= 1 << 20:  # paths have up to 4,096 bytes; POSIX headers may add attributes
            raise tarfile.ReadError("it holds a file name of more than a million letters")
        return self._stream.read(size)
