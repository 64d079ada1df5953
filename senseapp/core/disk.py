"""Bounded reads of files, and atomic writes: a crash leaves either the old or the new content."""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from senseapp.core.errors import StorageFailed

MOST_TEXT_BYTES = 100_000_000
_TEMPORARY = re.compile(r"\..+?(?:\.(\d+))?\.[0-9a-f]{32}")  # of which file, of which process


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Convert an operating-system error in the body to StorageFailed, with one sentence on ``what``."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(
            f"senseapp cannot use {what}: {error.strerror or error}. "
            "Check that the disk has space and that its folder is writable, then try again."
        ) from error


def read_at_most(path: Path, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """Return the content of a text file; raises OSError if it is larger, as devices have no end."""
    with path.open("rb") as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def fsync_folder(folder: Path) -> None:
    """Flush new and renamed entries of ``folder`` to disk, so that they survive a power cut (if supported)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` atomically; the parent folder must exist."""
    with storage_errors(path.name):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}")
        try:
            with temporary.open("xb") as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync_folder(path.parent)


def remove_temporaries(folder: Path, *, beside_others: bool) -> None:
    """Remove files that killed processes left in ``folder`` during :func:`replace_file`.

    With ``beside_others``, files of running processes are kept. Process ids recur, in a container at each start, so
    where no other process can be writing, all are removed.
    """
    for path in folder.glob(".*"):
        found = _TEMPORARY.fullmatch(path.name)
        if found and not (beside_others and found[1] and psutil.pid_exists(int(found[1]))):
            with suppress(OSError):  # a read-only disk; temporary files are never read
                path.unlink()
