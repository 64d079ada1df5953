"""Which files of the server a person's run may read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from senseapp.errors import InvalidCheckpoint, InvalidDataset, InvalidInput
from senseapp.spec import RunSpec


def configured_data_roots() -> tuple[Path, ...]:
    """Return the folders of ``SENSEAPP_DATA_ROOTS``, separated like ``PATH``."""
    entries = os.environ.get("SENSEAPP_DATA_ROOTS", "").split(os.pathsep)
    return tuple(Path(entry.strip()).expanduser().resolve() for entry in entries if entry.strip())


def uploads_folder(home: Path, owner: str) -> Path:
    """Return the folder of a person's uploads; its name is a hash, so that no user text becomes a path."""
    return home / "uploads" / hashlib.sha256(owner.encode()).hexdigest()[:32]


def check_paths(spec: RunSpec, allowed: tuple[Path, ...]) -> None:
    """Require that every file the run reads exists and lies, with links followed, under an allowed folder.

    Raises:
        InvalidCheckpoint, InvalidDataset: it does not.
    """
    _check(spec.model.checkpoint, allowed, what="checkpoint", error=InvalidCheckpoint)
    _check(spec.data.path, allowed, what="image folder or archive", error=InvalidDataset)


def _check(path: str, allowed: tuple[Path, ...], *, what: str, error: type[InvalidInput]) -> None:
    if not path:
        return
    try:
        resolved = Path(path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        resolved = None
    if resolved is None or not any(resolved.is_relative_to(folder.resolve()) for folder in allowed):
        raise error(
            f"This app reads a {what} only from uploads and from the folders in SENSEAPP_DATA_ROOTS; "
            f"{Path(path).name!r} is not there. Upload it, or ask for its folder to be added."
        )
