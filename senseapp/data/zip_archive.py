"""Pictures in a zip archive."""

from __future__ import annotations

import stat
import zipfile
import zlib
from pathlib import Path

from senseapp.data.contents import Contents, Entry, Unreadable, safe_member_name
from senseapp.data.limits import ArchiveLimits
from senseapp.errors import InvalidDataset
from senseapp.wording import printable

_ENCRYPTED = 0x1
_MEMBER_SIGNATURE = b"PK\x01\x02"
_CHUNK_BYTES = 1 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, NotImplementedError)


class ZipSource:
    """A zip archive whose names and sizes were found harmless.

    Raises:
        InvalidDataset: damaged, protected by a password, too large, or with names that lead outside.
    """

    def __init__(self, path: Path, limits: ArchiveLimits) -> None:
        self.title = printable(path.name)
        self.contents = Contents()
        self._limits = limits
        try:
            _check_directory(path, limits, self.title)
            self._zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise InvalidDataset(
                f"{self.title} is damaged or cut short ({error}). Pack the images again, or upload it once more."
            ) from error
        try:
            self._members = self._zip.infolist()
            self._check_sizes(path)
            for position, member in enumerate(self._members):
                self._list(position, member)
        except InvalidDataset:
            self.close()
            raise

    def _check_sizes(self, path: Path) -> None:
        if any(member.flag_bits & _ENCRYPTED for member in self._members):
            raise InvalidDataset(f"{self.title} is protected by a password. Pack the images again without one.")
        total = sum(member.file_size for member in self._members)
        self._limits.check_total(total, path.stat().st_size, self.title)

    def _list(self, position: int, member: zipfile.ZipInfo) -> None:
        name = safe_member_name(member.filename, self.title)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if member.is_dir():
            if name:
                self.contents.add_folder(name)
        elif kind not in (0, stat.S_IFREG):
            self.contents.links += 1
        elif name:
            self.contents.add_file(name, position)

    def read(self, entry: Entry) -> bytes:
        """Return the bytes of one member, at most the limit of one file.

        Raises:
            Unreadable: it is too large, damaged, or packed by a method that Python does not know.
        """
        member = self._members[entry.position]
        self._limits.check_file(member.file_size)
        try:
            with self._zip.open(member) as file:
                return file.read()
        except _DAMAGE as error:
            raise Unreadable("damaged in the archive") from error

    def close(self) -> None:
        """Close the archive."""
        self._zip.close()


def _check_directory(path: Path, limits: ArchiveLimits, title: str) -> None:
    """Count the entries before Python makes an object of each: millions fit into a small file."""
    count, tail = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            count += (tail + chunk).count(_MEMBER_SIGNATURE)
            limits.check_members(count, title)
            tail = chunk[1 - len(_MEMBER_SIGNATURE) :]
