"""The server's log: one JSON object a line, with the run it is about and without secrets."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from senseapp.store import storage_errors

_SECRET_NAME = re.compile(r"(SECRET|TOKEN|PASSWORD|PASSWD|API_KEY|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_SECRET = 6  # shorter ones would blot out ordinary words
_FILE_BYTES = 10_000_000
_FILES = 5
_READABLE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """Formats a record as ``{"time": ..., "level": ..., "logger": ..., "run": ..., "message": ..., "trace": ...}``.

    Args:
        secrets: texts to be blotted out wherever they occur; those of the environment are always.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        found = {secret for secret in (*secrets, *secrets_of_environment()) if len(secret) >= _SHORTEST_SECRET}
        longest_first = sorted(found, key=len, reverse=True)
        self._secret = re.compile("|".join(map(re.escape, longest_first))) if found else None

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "run": getattr(record, "run", ""),
            "message": self._without_secrets(record.getMessage()),
            "trace": self._without_secrets(self.formatException(record.exc_info)) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in told.items() if value}, ensure_ascii=False)

    def _without_secrets(self, text: str) -> str:
        return self._secret.sub("[secret]", text) if self._secret is not None else text


def secrets_of_environment() -> tuple[str, ...]:
    """Return the values of environment variables that are named like secrets."""
    return tuple(value for name, value in os.environ.items() if _SECRET_NAME.search(name) and value)


def log_to(home: Path, secrets: Iterable[str] = ()) -> None:
    """Let everything that is logged go to files under ``home`` and to the standard error stream.

    The stream gets JSON too, unless a person reads it: on a terminal the lines are plain.

    Raises:
        StorageFailed: the files cannot be made.
    """
    lines = JsonLines(secrets)
    stream = logging.StreamHandler()
    stream.setFormatter(logging.Formatter(_READABLE) if sys.stderr.isatty() else lines)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(stream)
    with storage_errors("the folder logs"):
        (home / "logs").mkdir(parents=True, exist_ok=True)
        file = logging.handlers.RotatingFileHandler(
            home / "logs" / "senseapp.jsonl", maxBytes=_FILE_BYTES, backupCount=_FILES, encoding="utf-8"
        )
    file.setFormatter(lines)
    root.addHandler(file)
    logging.captureWarnings(True)
