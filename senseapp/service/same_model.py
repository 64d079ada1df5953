"""Whether two runs measured one network: the same architecture with the same weights, wherever the files lie."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from pathlib import Path

from senseapp.errors import InvalidSchedule
from senseapp.spec import ModelSpec


def same_model(first: ModelSpec, second: ModelSpec) -> bool:
    """Return whether both are of one network: equal settings, and checkpoints of equal content.

    A checkpoint that is not on this machine, or no longer, is the same as one of an equal path only.
    """
    if first == second:
        return True
    if replace(first, checkpoint="") != replace(second, checkpoint="") or not (first.checkpoint and second.checkpoint):
        return False
    contents = [_content(model.checkpoint) for model in (first, second)]
    return contents[0] is not None and contents[0] == contents[1]


def require_same_model(first: ModelSpec, second: ModelSpec) -> None:
    """Check that two runs are of one network; of imported figures only the layers are known, which schedules compare.

    Raises:
        InvalidSchedule: their settings or the contents of their checkpoints differ.
    """
    if "imported" not in (first.library, second.library) and not same_model(first, second):
        names = " and ".join(Path(model.checkpoint).name or model.title for model in (first, second))
        raise InvalidSchedule(
            f"The two runs are of different models, or their checkpoints are no longer there to be compared ({names}). "
            "Choose two runs of one model."
        )


def _content(path: str) -> str | None:
    """Return a hash of the file at ``path``; None where there is none to be read."""
    file = Path(path)
    if not file.is_absolute():  # of a run from another server, of which only the file's name is known
        return None
    try:
        found = file.stat()
        return _hash(file, found.st_size, found.st_mtime_ns)
    except OSError:
        return None


@functools.lru_cache(maxsize=256)
def _hash(file: Path, _size: int, _changed: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
