"""An append-only file of measurements, one JSON line each, durable before the next one starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidFile
from senseapp.core.files import fsync_folder, replace_file, storage_errors
from senseapp.records.measurement import LayerMeasurement, latest


class Journal:
    """Measurements in the order they were made.

    A process that dies while it writes leaves a torn last line. Reading ignores it, and the next append cuts it
    off, so nothing but the measurement in flight is lost. One writer at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end: int | None = None  # bytes known to hold whole lines; None before the first append

    def append(self, measurement: LayerMeasurement) -> None:
        """Add one measurement; on return it is on the disk.

        Raises:
            StorageFailed: it cannot be written (disk full, folder gone).
        """
        line = dumps(measurement).encode() + b"\n"
        with storage_errors(self._path.name):
            if self._end is None:
                self._end = sum(len(whole) + 1 for whole in self._whole_lines())
            with self._path.open("ab") as stream:
                stream.truncate(self._end)
                stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
            if self._end == 0:
                fsync_folder(self._path.parent)
            self._end += len(line)

    def begin_with(self, measurements: Iterable[LayerMeasurement]) -> None:
        """Replace what is there by ``measurements``, whole or not at all.

        Raises:
            StorageFailed: they cannot be written.
        """
        replace_file(self._path, b"".join(dumps(measurement).encode() + b"\n" for measurement in measurements))
        self._end = None

    def read(self) -> tuple[LayerMeasurement, ...]:
        """Return the appended records, without a torn last line; of one layer and level the last counts.

        Raises:
            InvalidFile: a line other than the last is damaged, or a newer senseapp wrote it.
            StorageFailed: the file cannot be read.
        """
        return latest(self.history())

    def history(self) -> Iterator[LayerMeasurement]:
        """Yield everything that was appended, also what a later measurement replaces; see :meth:`read`."""
        for number, line in enumerate(self._whole_lines(), start=1):
            try:
                yield loads(line, LayerMeasurement)
            except InvalidFile as error:
                raise InvalidFile(
                    f"Line {number} of {self._path.name} is damaged: {error} Delete this run and start it again."
                ) from error

    def count(self) -> int:
        """Return how many measurements were appended, those that replace an earlier one included."""
        return len(self._whole_lines())

    def _whole_lines(self) -> list[bytes]:
        with storage_errors(self._path.name):
            content = self._path.read_bytes() if self._path.exists() else b""
        *lines, _torn = content.split(b"\n")  # what follows the last newline was never finished
        # A power cut can leave zeros in place of the last block.
        return lines[:-1] if lines and not lines[-1].startswith(b"{") else lines
