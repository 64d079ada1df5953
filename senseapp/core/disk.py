"""Reading files that end, and writing files so that a crash leaves either the old or the new content."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from senseapp.core.errors import StorageFailed

MOST_TEXT_BYTES = 100_000_000


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Raise StorageFailed, one sentence on ``what``, for an operating-system error in the body."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(
            f"senseapp cannot use {what}: {error.strerror or error}. "
            "Check that the disk has space and that its folder is writable, then try again."
        ) from error


def read_at_most(path: Path, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """Return the content of a file of text, which devices have no end of; raises OSError where it is larger."""
    with path.open("rb") as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def fsync_folder(folder: Path) -> None:
    """Make new and renamed entries of ``folder`` survive a power cut (not every platform can)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` whole or not at all; the parent folder must exist."""
    with storage_errors(path.name):
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
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
