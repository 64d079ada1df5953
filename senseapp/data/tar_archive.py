"""Pictures in a tar archive, plain or gzipped."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from senseapp.data.contents import Contents, Entry, Unreadable, safe_member_name
from senseapp.data.limits import ArchiveLimits
from senseapp.errors import InvalidDataset
from senseapp.wording import printable

_LONGEST_HEADER = 1 << 20
_DAMAGE = (tarfile.TarError, zlib.error, OSError, EOFError, ValueError, RuntimeError, KeyError, IndexError)


class TarSource:
    """A tar archive whose names and sizes were found harmless.

    Members are best read in the order of their ``position``: a gzipped archive can only be read forward, and
    starts over to go back.

    Raises:
        InvalidDataset: damaged, too large, or with names that lead outside.
    """

    def __init__(self, path: Path, limits: ArchiveLimits, *, gzipped: bool) -> None:
        self.title = printable(path.name)
        self.contents = Contents()
        self._limits = limits
        self._packed_bytes = path.stat().st_size
        self._sizes: dict[int, int] = {}
        # it stays open for reading; `close` closes it
        self._stream = cast(IO[bytes], (gzip.open if gzipped else open)(path, "rb"))
        try:
            self._list_everything()
        except InvalidDataset:
            self.close()
            raise
        except _DAMAGE as error:
            self.close()
            raise InvalidDataset(
                f"{self.title} is damaged or cut short ({error}). Pack the images again, or upload it once more."
            ) from error

    def _list_everything(self) -> None:
        total = 0
        for count, member in enumerate(self._members(), start=1):
            total += member.size
            self._limits.check_members(count, self.title)
            self._limits.check_total(total, self._packed_bytes, self.title)
            self._list(member)

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
            return self._stream.read(size)
        except _DAMAGE as error:
            raise Unreadable("damaged in the archive") from error

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
