"""How much a folder or archive may hold before it is refused."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.data.contents import Unreadable
from senseapp.errors import InvalidDataset

_MB = 1_000_000


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
    total_bytes: int = 20_000 * _MB
    file_bytes: int = 64 * _MB
    ratio: float = 100.0
    small_bytes: int = 100 * _MB

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
            raise Unreadable(f"larger than {self.file_bytes // _MB} MB")
