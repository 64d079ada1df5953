"""Uploaded files per browser session: owner, path, expiry; the one that is being received; loose pictures as one."""

import functools
import shutil
import threading
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

from senseapp.core.errors import QuotaExceeded, SenseError
from senseapp.core.files import storage_errors
from senseapp.core.foreign_zip import ZIP_DAMAGE, ForeignZip
from senseapp.server.service import Service

_LEAST_STEP_BYTES, _MOST_STEP_BYTES = 128 * 1024, 16 * 1024 * 1024  # reserved at once
_CHUNK_BYTES = 4 * 1024 * 1024  # read at a time
_MOST_ZIPS, _MOST_LISTED = 40, 20_000  # zips looked into, and files in each: of more, none is known again


Upload = Path | str
"""Where a file lies that was received, or why it was refused, in one sentence."""


@dataclass(slots=True)
class _Session:
    """The uploads of one browser session.

    Attributes:
        service: of the person; removes files.
        seen: when the session was last known to be connected.
        waiting: by file id, until the page takes them.
        taken: what the page took; a run that reads one keeps it.
    """

    service: Service
    seen: float
    waiting: dict[str, Upload] = field(default_factory=dict)
    taken: list[Path] = field(default_factory=list)

    def discard(self, *uploads: Upload | None) -> None:
        """Remove those that are files on disk; the others are the reasons of refused ones."""
        for upload in uploads:
            if isinstance(upload, Path):
                self.service.inputs.discard_upload(upload)


class UploadRegistry:
    """Uploads between the network and the pages, by session and file id; safe to use from any thread.

    A session may send files once a page has shown it a field for them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}

    def expect(self, session_id: str, service: Service) -> None:
        """Allow ``session_id`` to upload files, which belong to the person of ``service``."""
        with self._lock:
            self._sessions.setdefault(session_id, _Session(service, self._clock()))

    def service_of(self, session_id: str) -> Service | None:
        """Return the service of the person whose files ``session_id`` sends; None if no page asked it for any."""
        with self._lock:
            session = self._sessions.get(session_id)
        return session.service if session is not None else None

    def keep(self, session_id: str, file_id: str, upload: Upload, service: Service) -> None:
        """Hold a file of the person of ``service`` until the page takes it, or until the session has ended.

        Of too many that no page takes, the oldest are removed.
        """
        with self._lock:
            session = self._sessions.setdefault(session_id, _Session(service, self._clock()))
            removed = [session.waiting.pop(file_id, None)]
            session.waiting[file_id] = upload
            while len(session.waiting) > 512:  # files of one session that no page has taken
                removed.append(session.waiting.pop(next(iter(session.waiting))))
        session.discard(*removed)

    def look(self, session_id: str, file_id: str) -> Upload | None:
        """Return a file that waits for its page, and leave it there."""
        with self._lock:
            session = self._sessions.get(session_id)
            return session.waiting.get(file_id) if session is not None else None

    def take(self, session_id: str, file_id: str) -> Upload | None:
        """Hand a file to its page; it stays until the session ends or, if a run reads it, with the run."""
        with self._lock:
            session = self._sessions.get(session_id)
            upload = session.waiting.pop(file_id, None) if session is not None else None
            if session is not None and isinstance(upload, Path):
                session.taken.append(upload)
        return upload

    def adopt(self, session_id: str, path: Path, service: Service) -> None:
        """Keep a file that another session has sent with this one, for a page that was reloaded."""
        with self._lock:
            for session in self._sessions.values():
                session.taken = [taken for taken in session.taken if taken != path]
            self._sessions.setdefault(session_id, _Session(service, self._clock())).taken.append(path)

    def drop(self, session_id: str, file_id: str) -> None:
        """Remove a file that the person took back before its page took it."""
        with self._lock:
            session = self._sessions.get(session_id)
            upload = session.waiting.pop(file_id, None) if session is not None else None
        if session is not None:
            session.discard(upload)

    def close_ended(self, is_connected: Callable[[str], bool]) -> None:
        """Remove the files of sessions that have been disconnected for longer than Streamlit keeps them."""
        now, ended = self._clock(), []
        with self._lock:
            for session_id, session in list(self._sessions.items()):
                if is_connected(session_id):
                    session.seen = now
                elif now - session.seen > 600.0:
                    ended.append(self._sessions.pop(session_id))
        for session in ended:
            session.discard(*session.waiting.values(), *session.taken)


@functools.cache
def upload_registry() -> UploadRegistry:
    """Return this process's registry."""
    return UploadRegistry()


class IncomingFile:
    """A file of one person, on its way to the disk. Its methods block; call them one after the other.

    Room is reserved for what has come, and for about as much again. A refusal is remembered, not raised: a browser
    shows an answer only after it has sent everything, so the rest is let through without being stored, and the page
    says why.

    Args:
        service: of the person.
        announced_bytes: announced size, which must fit in; 0 where none is announced.
    """

    def __init__(self, service: Service, announced_bytes: int) -> None:
        self._service = service
        self._refused = ""
        self._path: Path | None = None
        self._stream: BinaryIO | None = None
        self._written = self._reserved = 0
        try:
            self._path = service.inputs.reserve_upload(announced_bytes=announced_bytes)
            with storage_errors("the folder uploads"):
                self._stream = self._path.open("r+b")
        except SenseError as error:
            self._refuse(error)

    def write(self, content: bytes) -> None:
        """Append ``content``, unless the file was refused."""
        if self._stream is None or self._path is None:
            return
        try:
            self._written += len(content)
            if self._written > self._reserved:
                self._reserve(self._path)
            with storage_errors("the folder uploads"):
                self._stream.write(content)
        except SenseError as error:
            self._refuse(error)

    def finish(self) -> Upload:
        """Return the whole file, or why there is none."""
        if self._stream is not None:
            try:
                with storage_errors("the folder uploads"):
                    self._stream.truncate()  # what was reserved beyond the file
                    self._stream.close()
            except SenseError as error:
                self._refuse(error)
        return self._path or self._refused

    def abandon(self) -> None:
        """Remove what has come so far."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(OSError):  # a full disk may refuse the last bytes once more
                stream.close()
        if self._path is not None:
            shutil.rmtree(self._path.parent, ignore_errors=True)  # no run can read it yet
            self._path = None

    def _reserve(self, path: Path) -> None:
        """Reserve as many bytes again as were received, at least and at most a step; only those if a quota forbids it.

        Raises:
            QuotaExceeded: that is too much as well.
            StorageFailed: the disk refuses.
        """
        needed = self._written - self._reserved
        ahead = max(needed, min(max(self._written, _LEAST_STEP_BYTES), _MOST_STEP_BYTES))
        try:
            self._service.inputs.extend_upload(path, ahead)
            self._reserved += ahead
        except QuotaExceeded:
            self._service.inputs.extend_upload(path, needed)
            self._reserved += needed

    def _refuse(self, error: SenseError) -> None:
        self._refused = str(error)
        self.abandon()


def suffix_of(name: str) -> str:
    """Return the suffix of a file's name in lower case, with its dot; empty without one."""
    return Path(name).suffix.lower()


def zip_files(service: Service, files: Sequence[Path]) -> Path:
    """Return a new upload of the person of ``service``: a zip of the ``files``, in their order, not compressed.

    Files of the same name get a number. The upload counts against the quotas like any other.

    Raises SenseError if a quota would be passed, or the disk refuses.
    """
    with storage_errors("the folder uploads"):
        heads = 1024 * len(files)  # bytes: more than what a zip says of each file takes
        packed = service.inputs.reserve_upload(heads + sum(path.stat().st_size for path in files))
        seen: Counter[str] = Counter()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for path in files:
                seen[path.name] += 1
                number = seen[path.name]
                archive.write(path, path.name if number == 1 else f"{path.stem}-{number}{path.suffix}")
    return packed


def zip_entry(path: Path) -> tuple[str, int, int]:
    """Return name, bytes and CRC-32 of a file, as a zip lists them."""
    with storage_errors("the folder uploads"), path.open("rb") as stream:
        crc = 0
        for content in iter(functools.partial(stream.read, _CHUNK_BYTES), b""):
            crc = zlib.crc32(content, crc)
        return path.name, stream.tell(), crc


def zip_entries(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield what :func:`zip_entry` says of the files in a zip, and in zips stored in it; none of what is damaged.

    At most :data:`_MOST_ZIPS` are looked into: entries that overlap could nest them without end.
    """
    waiting: list[Path | IO[bytes]] = [path]
    with ExitStack() as opened:
        for _ in range(_MOST_ZIPS):
            if not waiting:
                break
            with suppress(*ZIP_DAMAGE):
                archive = ForeignZip(waiting.pop(), most_members=_MOST_LISTED)
                opened.callback(archive.close)
                for member in archive.members:
                    yield member.filename, member.file_size, member.CRC
                    if suffix_of(member.filename) == ".zip" and (inner := archive.window(member)) is not None:
                        waiting.append(inner)
