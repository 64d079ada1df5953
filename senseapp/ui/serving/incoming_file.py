"""One file that is being received: written as it comes, or refused with a sentence."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from senseapp.errors import SenseError, StorageFailed
from senseapp.service import Service
from senseapp.store import storage_errors
from senseapp.ui.serving.arrivals import Upload


class IncomingFile:
    """A file of one person, on its way to the disk. Its methods block; call them one after the other.

    A refusal is remembered, not raised: a browser shows an answer only after it has sent everything, so the rest is
    let through without being stored, and the page says why.

    Args:
        service: of the person.
        num_bytes: announced size; room is reserved for it.
    """

    def __init__(self, service: Service, num_bytes: int) -> None:
        self._service = service
        self._refused = ""
        self._path: Path | None = None
        self._stream: BinaryIO | None = None
        try:
            self._path = service.inputs.reserve_upload(num_bytes)
            with storage_errors("the folder uploads"):
                self._stream = self._path.open("r+b")
        except SenseError as error:
            self._refuse(error)

    def write(self, content: bytes) -> None:
        """Append ``content``, unless the file was refused."""
        if self._stream is None:
            return
        try:
            with storage_errors("the folder uploads"):
                self._stream.write(content)
        except StorageFailed as error:
            self._refuse(error)

    def finish(self) -> Upload:
        """Return the whole file, or why there is none."""
        if self._stream is not None:
            try:
                with storage_errors("the folder uploads"):
                    self._stream.truncate()  # what was reserved beyond the file
                    self._stream.close()
            except StorageFailed as error:
                self._refuse(error)
        return Upload(path=self._path, refused=self._refused)

    def abandon(self) -> None:
        """Remove what has come so far."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(OSError):  # a full disk may refuse the last bytes once more
                stream.close()
        if self._path is not None:
            self._service.inputs.discard_upload(self._path)
            self._path = None

    def _refuse(self, error: SenseError) -> None:
        self._refused = str(error)
        self.abandon()
