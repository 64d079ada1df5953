"""Loose pictures as one archive."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from senseapp.app.uploads.registry import IncomingFile, Upload
from senseapp.core.disk import storage_errors
from senseapp.server.service import Service


def suffix_of(name: str) -> str:
    """Return the suffix of a file's name in lower case, with its dot; empty without one."""
    return Path(name).suffix.lower()


def zip_pictures(service: Service, pictures: Sequence[Path]) -> Upload:
    """Return a new upload of the person of ``service``: a zip of the ``pictures``, in their order, not compressed.

    Pictures of the same name get a number. The upload counts against the quotas like any other.
    """
    with storage_errors("the folder uploads"):
        incoming = IncomingFile(service, sum(path.stat().st_size for path in pictures))
        seen: Counter[str] = Counter()
        with zipfile.ZipFile(cast(IO[bytes], _Stream(incoming)), "w", zipfile.ZIP_STORED) as archive:
            for path in pictures:
                seen[path.name] += 1
                number = seen[path.name]
                archive.write(path, path.name if number == 1 else f"{path.stem}-{number}{path.suffix}")
    return incoming.finish()


class _Stream:
    """What ``zipfile`` writes to: it goes on from part to part, and never back."""

    def __init__(self, incoming: IncomingFile) -> None:
        self._incoming = incoming

    def write(self, content: bytes) -> int:
        self._incoming.write(content)
        return len(content)

    def flush(self) -> None:
        """Nothing is held back."""
