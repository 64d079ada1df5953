"""Files: limited reads, atomic writes, the home of senseapp's runs, and its shipped files.

A lock lets one server at a time serve a home.
"""

import errno
import logging
import os
import re
import stat
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TextIO

import platformdirs
import psutil

from senseapp.core.errors import HomeInUse, StorageFailed

MB = 1_000_000  # as in the names of limits, and on pages
DAY_SECONDS = 24 * 3600.0  # the unit of how long things are kept
MOST_TEXT_BYTES = 100 * MB  # of a text that is read at once: tables and schedules have a few
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


def files_at(path: Path) -> tuple[Path, ...]:
    """Return the file ``path``, or the files in the folder ``path`` by their names; none where nothing is there."""
    if path.is_dir():
        return tuple(sorted(each for each in path.iterdir() if each.is_file()))
    return (path,) if path.is_file() else ()


def bytes_in(folder: Path) -> int:
    """Return the size of all files in ``folder``, without those that are removed meanwhile; 0 if it is gone."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


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


def write_file(path: Path, content: str | bytes) -> None:
    """Do the same for a file that a person asked for, and make its folder if necessary."""
    with storage_errors(f"the folder of {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)


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


PRIVATE = 0o077
"""Umask of processes that write into the home: only the owner can open files and folders."""

_LOCK_NAME = "server.lock"
_log = logging.getLogger(__name__)
_held: dict[Path, TextIO] = {}
_holding = threading.Lock()


def home() -> Path:
    """Return ``SENSEAPP_HOME`` if it is set, else the platform's user data folder for senseapp."""
    configured = os.environ.get("SENSEAPP_HOME", "").strip()
    return (
        Path(configured).expanduser() if configured else Path(platformdirs.user_data_dir("senseapp", appauthor=False))
    )


def make_private(folder: Path) -> None:
    """Create ``folder`` with its parents if necessary, and restrict access to its owner, also if it exists.

    A folder of another user, or of all users (``/tmp``), is unchanged, which is logged.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o777 & ~PRIVATE)
    found = folder.stat()
    if sys.platform == "win32" or not found.st_mode & PRIVATE:
        return
    if found.st_uid != os.getuid() or found.st_mode & stat.S_ISVTX:
        _log.warning("others may look into the folder %s, which is not this user's alone", folder)
    else:
        folder.chmod(found.st_mode & ~PRIVATE)


def lock_home(folder: Path) -> None:
    """Lock ``folder`` for this process until it ends in any way; HomeInUse if another process holds the lock."""
    folder = folder.expanduser().resolve()
    with _holding:
        if folder in _held:
            return
        with storage_errors(f"the folder {folder.name}"):
            make_private(folder)
            file = (folder / _LOCK_NAME).open("a+", encoding="utf-8")
        if not locked(file):
            with file:
                file.seek(0)
                who = file.read() or "a process that could not say which it is"
            raise HomeInUse(
                f"Another senseapp server works in this folder already: {who}. "
                "Stop it first, or set SENSEAPP_HOME to another folder."
            )
        _held[folder] = file
        with suppress(OSError):  # a full disk; the lock is held anyway
            file.truncate(0)
            file.write(f"process {os.getpid()}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
            file.flush()


def locked(file: IO[Any]) -> bool:
    """Lock an open file until it is closed or the process dies; return False if another process holds the lock."""
    if sys.platform == "win32":  # which has no lock that a killed process gives up
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "site"

SITE = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent
"""The top of the clone; in an installed package, a folder of its own that the build has filled (``setup.py``)."""
