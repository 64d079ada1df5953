"""How much people may upload, and removing what nobody needs any more."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from senseapp.errors import InvalidSpec, QuotaExceeded

__all__ = ["UploadLimits", "discard_upload", "make_room"]

_MB = 1_000_000
_UNUSED_SECONDS = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadLimits:
    """Megabytes that uploads may take.

    Attributes:
        file_mb: one file (``SENSEAPP_MAX_UPLOAD_MB``).
        person_mb: all files of one person (``SENSEAPP_UPLOADS_PER_PERSON_MB``).
        server_mb: all files of everybody (``SENSEAPP_UPLOADS_IN_ALL_MB``).
    """

    file_mb: int = 2048
    person_mb: int = 8192
    server_mb: int = 32768

    @classmethod
    def configured(cls) -> UploadLimits:
        """Return the limits from the environment.

        Raises:
            InvalidSpec: one is not a whole number above 0.
        """
        return cls(
            file_mb=_number("SENSEAPP_MAX_UPLOAD_MB", cls().file_mb),
            person_mb=_number("SENSEAPP_UPLOADS_PER_PERSON_MB", cls().person_mb),
            server_mb=_number("SENSEAPP_UPLOADS_IN_ALL_MB", cls().server_mb),
        )


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise InvalidSpec(f"{name} must be a whole number of megabytes above 0, got {text!r}.")
    return int(text)


def make_room(folder: Path, num_bytes: int, *, in_use: Iterable[str], limits: UploadLimits) -> None:
    """Check that ``num_bytes`` more may go to a person's uploads in ``folder``.

    Before that, uploads of this person that are hours old and that no run reads are removed.

    Args:
        folder: of this person; its neighbours are everybody else's.
        num_bytes: size of the new file.
        in_use: paths that this person's runs read.
        limits: see :class:`UploadLimits`.

    Raises:
        QuotaExceeded: the file is too large, or a quota would be passed.
    """
    if num_bytes > limits.file_mb * _MB:
        raise QuotaExceeded(f"A file may have up to {limits.file_mb:,} MB here, this one has {num_bytes // _MB:,} MB.")
    _tidy(folder, set(in_use))
    used, in_all = _bytes_in(folder), _bytes_in(folder.parent)
    if used + num_bytes > limits.person_mb * _MB:
        raise QuotaExceeded(
            f"Your uploads may take {limits.person_mb:,} MB and take {used // _MB:,} MB; this file adds "
            f"{num_bytes // _MB:,} MB. Delete runs whose files you no longer need, or bring a smaller file."
        )
    if in_all + num_bytes > limits.server_mb * _MB:
        raise QuotaExceeded(
            f"The uploads on this server may take {limits.server_mb:,} MB in all, and there is no room for "
            f"{num_bytes // _MB:,} MB more. Try again later, or ask whoever runs it."
        )


def discard_upload(path: Path, folder: Path, *, in_use: Iterable[str]) -> None:
    """Remove the upload ``path`` with its own folder, unless it lies elsewhere or a run reads it."""
    own = path.parent
    if own.parent == folder and str(path) not in set(in_use):
        shutil.rmtree(own, ignore_errors=True)


def _tidy(folder: Path, in_use: set[str]) -> None:
    oldest = time.time() - _UNUSED_SECONDS
    for path in folder.glob("*/*"):
        if str(path) not in in_use and path.lstat().st_mtime < oldest:
            discard_upload(path, folder, in_use=())


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
