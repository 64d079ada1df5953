"""Pictures in a zip or tar archive, read where they lie: nothing is unpacked to disk."""

from __future__ import annotations

import tarfile
from pathlib import Path

from senseapp.data.limits import ArchiveLimits
from senseapp.data.tar_archive import TarSource
from senseapp.data.zip_archive import ZipSource
from senseapp.errors import InvalidDataset
from senseapp.wording import printable

_ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!": "RAR",
    b"\x28\xb5\x2f\xfd": "Zstandard",
}


def open_archive(path: Path, limits: ArchiveLimits | None = None) -> ZipSource | TarSource:
    """Open an archive; what it is, is told by its first bytes, not by its name.

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
    if start.startswith(_ZIP):
        return ZipSource(path, limits)
    if start.startswith(_GZIP) or start[257:262] == b"ustar" or _is_old_tar(start):
        return TarSource(path, limits, gzipped=start.startswith(_GZIP))
    raise _not_an_archive(start, title)


def _is_old_tar(start: bytes) -> bool:
    """Return whether this block is a tar header of before 1988, which has a check sum but no name."""
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _not_an_archive(start: bytes, title: str) -> InvalidDataset:
    if not start:
        return InvalidDataset(f"{title} is empty. Choose a zip or tar archive of images.")
    kind = next((kind for magic, kind in _OTHERS.items() if start.startswith(magic)), None)
    found = f"is a {kind} file" if kind else "is not an archive"
    return InvalidDataset(f"{title} {found}; images come in a zip, tar or tar.gz. Pack them as one of these.")
