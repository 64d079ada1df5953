"""Zip archives that anybody may have made: every one is opened here, and every member is read here.

A member that says 10 bytes may inflate to gigabytes, and one compressed by bzip2 or LZMA does so in a single call. So
only stored and deflated members are read, a megabyte at a time, and never beyond the size that they declare. The
directory is limited before Python makes an object of each of its entries.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 1 << 20
_ENTRY_SIGNATURE = b"PK\x01\x02"
_LEAST_ENTRY_BYTES, _USUAL_ENTRY_BYTES = 46, 512  # without and with a long name
_LEAST_DIRECTORY_BYTES = 1 << 20
_ENCRYPTED = 0x1
_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "Deflate"}
_UNREAD_METHODS = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz", 98: "PPMd", 99: "AES"}

ZIP_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError),
    *(NotImplementedError, KeyError, IndexError),
)
"""What reading a damaged archive may raise, :class:`ZipRefused` included."""


class ZipRefused(ValueError):
    """An archive or a member that is not read; the text says why, as a clause."""


class TooManyMembers(ZipRefused):
    """An archive of more members than are allowed."""


class ForeignZip:
    """A zip archive, opened for reading.

    Args:
        file: its path, or a seekable stream that stays open as long as members are read.
        most_members: entries that its directory may have.

    Attributes:
        members: its entries, in the order of the directory; their sizes are what they declare.

    Raises:
        TooManyMembers: there are more.
        BadZipFile, OSError, ...: one of :data:`ZIP_DAMAGE`.
    """

    def __init__(self, file: Path | IO[bytes], *, most_members: int) -> None:
        own = file.open("rb") if isinstance(file, Path) else None
        stream = own or file
        assert not isinstance(stream, Path)
        self._own = own
        reader = _DirectoryReader(stream, most_members)
        try:
            self._zip = zipfile.ZipFile(reader)
        except BaseException:
            self.close()
            raise
        reader.listed = True
        self.members = tuple(self._zip.infolist())

    @property
    def total_bytes(self) -> int:
        """What all members together declare to unpack to."""
        return sum(member.file_size for member in self.members)

    @property
    def encrypted(self) -> bool:
        """Whether any member needs a password."""
        return any(member.flag_bits & _ENCRYPTED for member in self.members)

    def open(self, member: zipfile.ZipInfo) -> IO[bytes]:
        """Open a member for readers that ask for a bounded number of bytes each time.

        Raises:
            ZipRefused: its compression is not read here.
        """
        if member.compress_type not in _METHODS:
            known = _UNREAD_METHODS.get(member.compress_type, f"method {member.compress_type}")
            raise ZipRefused(f"compressed by {known}, where only {' and '.join(_METHODS.values())} are read")
        return self._zip.open(member)

    def chunks(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        """Yield the bytes of a member, a megabyte at most at a time: as many as it declares.

        Raises:
            ZipRefused: its compression is not read here, or it holds fewer bytes than it declares.
            BadZipFile, OSError, ...: one of :data:`ZIP_DAMAGE`; also where it holds more bytes, by their check sum.
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
        """Return the bytes of a member, which its declared size must not make too many; raises as :meth:`chunks`."""
        return b"".join(self.chunks(member))

    def close(self) -> None:
        """Close the archive, and the file where it was opened by its path."""
        if hasattr(self, "_zip"):
            self._zip.close()
        if self._own is not None:
            self._own.close()


class _DirectoryReader(io.RawIOBase):
    """The archive as ``zipfile`` reads it: until it is ``listed``, no directory of too many entries.

    ``zipfile`` reads the directory at once, wherever it found it, so every block that it reads is looked at.
    """

    def __init__(self, stream: IO[bytes], most_members: int) -> None:
        super().__init__()
        self._stream = stream
        self._most_members = most_members
        self.listed = False

    def read(self, size: int = -1, /) -> bytes:
        if self.listed:
            return self._stream.read(size)
        most = max(_LEAST_DIRECTORY_BYTES, _USUAL_ENTRY_BYTES * self._most_members)
        block = self._stream.read(min(size, most + 1) if size >= 0 else most + 1)
        if len(block) > most or (
            len(block) > _LEAST_ENTRY_BYTES * self._most_members and block.count(_ENTRY_SIGNATURE) > self._most_members
        ):
            raise TooManyMembers(f"it holds more than {self._most_members:,} files")
        return block

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True
