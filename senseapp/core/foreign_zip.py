"""Untrusted zip archives: all of them are opened, and all members read, by this module.

A member that declares 10 bytes may inflate to gigabytes, and with bzip2 or LZMA in a single call. So only stored and
deflated members are read, a megabyte at a time, and never beyond their declared size. The size of the directory is
limited before Python creates an object for each entry.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

MOST_UNPACKED = 4  # times an archive of weights: trained ones hardly get smaller
_CHUNK_BYTES = 1 << 20  # held in memory while a member is unpacked
_ENTRY_SIGNATURE = b"PK\x01\x02"
_USUAL_ENTRY_BYTES = 512  # with a long name
_LEAST_DIRECTORY_BYTES = 1 << 20  # a directory of this size is read whatever the limit of members
_ENCRYPTED = 0x1  # bit 0 of the flags: APPNOTE.TXT, 4.4.4
_LOCAL_HEADER_BYTES = 30  # before the name: APPNOTE.TXT, 4.3.7
_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "Deflate"}
_UNREAD_METHODS = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz", 98: "PPMd", 99: "AES"}

ZIP_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError),
    *(NotImplementedError, KeyError, IndexError),
)
"""Exceptions from reading a damaged archive, with :class:`ZipRefused`."""


class ZipRefused(ValueError):
    """An archive or member that is not read, with the reason as a clause."""


class TooManyMembers(ZipRefused):
    """An archive with more members than allowed."""


class ForeignZip:
    """A zip archive, opened for reading: a path, or a seekable stream that stays open while members are read.

    ``members`` are its entries, in the order of the directory, with their declared sizes. TooManyMembers for more than
    ``most_members``; one of :data:`ZIP_DAMAGE` for a damaged one.
    """

    def __init__(self, file: Path | IO[bytes], *, most_members: int) -> None:
        with ExitStack() as opened:
            self._stream = opened.enter_context(file.open("rb")) if isinstance(file, Path) else file
            reader = _DirectoryReader(self._stream, most_members)
            self._zip = opened.enter_context(zipfile.ZipFile(cast(IO[bytes], reader)))
            self._opened = opened.pop_all()
        reader.listed = True
        self.members = tuple(self._zip.infolist())

    @property
    def total_bytes(self) -> int:
        """Declared unpacked size of all members."""
        return sum(member.file_size for member in self.members)

    @property
    def encrypted(self) -> bool:
        """Whether any member needs a password."""
        return any(member.flag_bits & _ENCRYPTED for member in self.members)

    def open(self, member: zipfile.ZipInfo) -> IO[bytes]:
        """Open a member, to be read in bounded parts; ZipRefused if its compression is not supported."""
        if member.compress_type not in _METHODS:
            known = _UNREAD_METHODS.get(member.compress_type, f"method {member.compress_type}")
            raise ZipRefused(f"compressed by {known}, where only {' and '.join(_METHODS.values())} are read")
        return self._zip.open(member)

    def window(self, member: zipfile.ZipInfo) -> IO[bytes] | None:
        """Return a stored member as a seekable stream, while the archive is open; None for a compressed one."""
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:
            return None
        return cast(IO[bytes], _Window(self._stream, self.start_of(member), member.file_size))

    def start_of(self, member: zipfile.ZipInfo) -> int:
        """Return the place in the file of a member's first byte, as it is stored; raises ZipRefused if cut short."""
        self._stream.seek(member.header_offset)
        header = self._stream.read(_LOCAL_HEADER_BYTES)
        if len(header) < _LOCAL_HEADER_BYTES:
            raise ZipRefused("cut short")
        name_bytes, extra_bytes = struct.unpack("<HH", header[-4:])
        return int(member.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes)

    def chunks(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        """Yield the declared number of bytes of a member, in chunks of at most a megabyte.

        ZipRefused or one of :data:`ZIP_DAMAGE` if it is damaged, or holds fewer or more bytes than declared.
        """
        left = member.file_size
        with self.open(member) as file:
            while chunk := file.read(min(_CHUNK_BYTES, left + 1)):
                left -= len(chunk)
                if left < 0:
                    raise ZipRefused("larger than it says")
                yield chunk
        if left:
            raise ZipRefused("smaller than it says")

    def read(self, member: zipfile.ZipInfo) -> bytes:
        """Return the bytes of a member, whose declared size the caller must have limited; raises as :meth:`chunks`."""
        return b"".join(self.chunks(member))

    def close(self) -> None:
        """Close the archive, and a file that was opened by its path."""
        self._opened.close()


class GuardedStream:
    """A seekable stream for readers of archives, whose subclasses bound what is read at once."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return what the stream itself has."""
        return getattr(self._stream, name)


class _Window(GuardedStream):
    """Bytes ``start`` to ``start + size`` of a stream that others read from as well."""

    def __init__(self, stream: IO[bytes], start: int, size: int) -> None:
        super().__init__(stream)
        self._start, self._size, self._place = start, size, 0

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._size - self._place)
        self._stream.seek(self._start + self._place)
        content = self._stream.read(left if size < 0 else min(size, left))
        self._place += len(content)
        return content

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the start")
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place


class _DirectoryReader(GuardedStream):
    """Stream for ``zipfile`` that limits the directory, which is read at once, until it is ``listed``."""

    def __init__(self, stream: IO[bytes], most_members: int) -> None:
        super().__init__(stream)
        self._most_members = most_members
        self.listed = False

    def read(self, size: int = -1, /) -> bytes:
        if self.listed:
            return self._stream.read(size)
        most = max(_LEAST_DIRECTORY_BYTES, _USUAL_ENTRY_BYTES * self._most_members)
        block = self._stream.read(min(size, most + 1) if size >= 0 else most + 1)
        if len(block) > most or (
            len(block) > 46 * self._most_members and block.count(_ENTRY_SIGNATURE) > self._most_members
        ):
            raise TooManyMembers(f"it holds more than {self._most_members:,} files")
        return block
