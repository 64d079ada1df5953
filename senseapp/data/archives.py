"""Pictures in zip and tar archives, read without unpacking to disk.

Archives are hostile: names, sizes and numbers of entries are checked before a byte of a picture is read.
"""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, cast
from zipfile import ZipInfo

from senseapp.core.errors import InvalidDataset
from senseapp.core.files import MB
from senseapp.core.foreign_zip import ZIP_DAMAGE, ForeignZip, TooManyMembers, ZipRefused
from senseapp.core.texts import printable
from senseapp.data.contents import PICTURE_SUFFIXES, Contents, Entry, Unreadable, safe_member_name
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
_DEEPEST, _MOST_INNER = 8, 100  # zips in zips, one in the other and beside each other
_PNG_COLOURS = 25  # byte of the header that says which: PNG specification, 11.2.1
_MASKS = (b"\0", b"\3")  # grey, and palette
_LONGEST_HEADER = 1 << 20  # paths have up to 4,096 bytes; POSIX headers may add attributes
_DAMAGE = (*ZIP_DAMAGE, tarfile.TarError)


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


def open_archive(path: Path, limits: ArchiveLimits | None = None) -> ZipSource | TarSource:
    """Open an archive, whose kind is determined by its first bytes, not by its name.

    Raises:
        InvalidDataset: not a zip, tar or tar.gz, damaged, protected by a password, too large, or made to do harm.
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
        if start.startswith(_GZIP) or start[257:262] == b"ustar" or _is_old_tar(start):
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


def _is_old_tar(start: bytes) -> bool:
    """Return whether this block is a tar header of before 1988, which has a check sum but no name."""
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


class ZipSource:
    """A zip archive whose names and sizes were found harmless.

    Zips stored in it count as unpacked beside its files; pages pack several uploaded files this way. What is inside
    ``masks.zip`` lies in a folder of that name, as masks beside the pictures of their name do.

    Raises:
        InvalidDataset: protected by a password, too large, or with names that lead outside.
        BadZipFile, OSError, ValueError, …: damaged.
    """

    foreign = True

    def __init__(
        self, file: Path | IO[bytes], limits: ArchiveLimits, *, title: str = "", file_bytes: int = 0, depth: int = 0
    ) -> None:
        self.title = title or printable(cast(Path, file).name)
        self.contents = Contents()
        self._limits = limits
        self._depth = depth
        self._inner: list[tuple[str, ZipSource]] = []
        self._places: list[tuple[ZipSource, Entry]] = []  # of files of the inner ones
        with ExitStack() as until_listed:
            self._zip = self._opened(file)
            until_listed.callback(self._zip.close)
            self._check_sizes(file_bytes or cast(Path, file).stat().st_size)
            for position, member in enumerate(self._zip.members):
                self._list(position, member)
            self._include_inner(file_bytes or cast(Path, file).stat().st_size)
            until_listed.pop_all()  # it stays open for reading; `close` closes it

    def _opened(self, file: Path | IO[bytes]) -> ForeignZip:
        try:
            return ForeignZip(file, most_members=self._limits.members)
        except TooManyMembers:
            self._limits.check_members(self._limits.members + 1, self.title)
            raise

    def _check_sizes(self, packed_bytes: int) -> None:
        if self._zip.encrypted:
            raise InvalidDataset(f"{self.title} is protected by a password. Pack the images again without one.")
        self._limits.check_total(self._zip.total_bytes, packed_bytes, self.title)

    def _list(self, position: int, member: ZipInfo) -> None:
        name = safe_member_name(member.filename, self.title)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if member.is_dir():
            if name:
                self.contents.add_folder(name)
        elif kind not in (0, stat.S_IFREG):
            self.contents.links += 1
        elif name and (inner := self._opened_inside(name, member)) is not None:
            self._inner.append((name, inner))
        elif name:
            self.contents.add_file(name, position)

    def _opened_inside(self, name: str, member: ZipInfo) -> ZipSource | None:
        """Return a zip that is stored in this one; None for other files, and for one that cannot be read."""
        is_zip = name.lower().endswith(".zip") and self._depth < _DEEPEST and len(self._inner) < _MOST_INNER
        try:
            stream = self._zip.window(member) if is_zip and "/" not in name else None
            if stream is None:
                return None
            return ZipSource(
                stream, self._limits, title=printable(name), file_bytes=member.file_size, depth=self._depth + 1
            )
        except _DAMAGE:
            return None

    @property
    def _unpacked(self) -> tuple[int, int]:
        """Number of files, and their bytes, with those of inner archives."""
        inner = [source._unpacked for _, source in self._inner]
        own = len(self._zip.members), self._zip.total_bytes
        return own[0] + sum(files for files, _ in inner), own[1] + sum(size for _, size in inner)

    def _include_inner(self, packed_bytes: int) -> None:
        """Add the files of inner archives to the listing, and part masks from the pictures of the same name."""
        num_files, num_bytes = self._unpacked
        self._limits.check_members(num_files, self.title)
        self._limits.check_total(num_bytes, packed_bytes, self.title)
        files = [(entry.name, entry.position) for entry in self.contents.entries]
        listings = [self.contents]
        for name, source in self._inner:
            stem = name[: -len(".zip")]
            folder = f"{stem}/" if stem.casefold() in LABEL_FOLDERS else ""
            for entry in source.contents.entries:
                files.append((folder + entry.name, len(self._zip.members) + len(self._places)))
                self._places.append((source, entry))
            listings.append(source.contents)
        masks = self._masks_among(files)
        if self._inner or masks:
            self.contents = Contents.of(_named_apart(files, masks), listings)

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
        """Return the bytes of one member, at most the limit of one file.

        Raises:
            Unreadable: it is too large, damaged, of another size than it declares, or packed by a method that is not
                read here.
        """
        if entry.position >= len(self._zip.members):
            source, own = self._places[entry.position - len(self._zip.members)]
            return source.read(own)
        member = self._zip.members[entry.position]
        self._limits.check_file(member.file_size)
        try:
            return self._zip.read(member)
        except ZipRefused as error:
            raise Unreadable(str(error)) from error
        except _DAMAGE as error:
            raise Unreadable("damaged in the archive") from error

    def close(self) -> None:
        """Close the archive."""
        self._zip.close()


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


class TarSource:
    """A tar archive, plain or gzipped, whose names and sizes were found harmless.

    Members are best read in the order of their ``position``: a gzipped archive can only be read forward, and
    starts over to go back.

    Raises:
        InvalidDataset: too large, or with names that lead outside.
        TarError, OSError, EOFError, …: damaged.
    """

    foreign = True

    def __init__(self, path: Path, limits: ArchiveLimits, *, gzipped: bool) -> None:
        self.title = printable(path.name)
        self.contents = Contents()
        self._limits = limits
        self._sizes: dict[int, int] = {}
        with ExitStack() as until_listed:
            self._stream = until_listed.enter_context(cast(IO[bytes], (gzip.open if gzipped else open)(path, "rb")))
            packed_bytes, total = path.stat().st_size, 0
            for count, member in enumerate(self._members(), start=1):
                total += member.size
                limits.check_members(count, self.title)
                limits.check_total(total, packed_bytes, self.title)
                self._list(member)
            until_listed.pop_all()  # it stays open for reading; `close` closes it

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """Yield the members; none is kept, so that memory does not grow with their number."""
        with tarfile.open(fileobj=_HeaderReader(self._stream), mode="r:") as archive:
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
        """Return the bytes of one member.

        Raises:
            Unreadable: it is too large or damaged.
        """
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

    def close(self) -> None:
        """Close the archive."""
        self._stream.close()


class _HeaderReader(io.RawIOBase):
    """The archive as tarfile may read it: header by header, never a whole file.

    A name can be stored in a header of any length, which tarfile would read into memory at once.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _LONGEST_HEADER:
            raise tarfile.ReadError("it holds a file name of more than a million letters")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()
