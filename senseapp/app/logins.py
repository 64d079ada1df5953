"""The owner of a login cookie, and cookies of ended logins, which are no longer accepted."""

import functools
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from senseapp.compat.streamlit_internals import login_claims, login_payload
from senseapp.core.errors import StorageFailed
from senseapp.core.files import DAY_SECONDS, home, replace_file

_log = logging.getLogger(__name__)
_KEPT_SECONDS = 31 * DAY_SECONDS  # a day longer than Streamlit's cookie lives


def owner_of(claims: Mapping[str, Any]) -> str:
    """Return the owner that a login's claims name, empty if they lack an issuer or a subject."""
    issuer, subject = (str(claims.get(claim) or "") for claim in ("iss", "sub"))
    return f"{issuer}|{subject}" if issuer and subject else ""


class Logouts:
    """Hashes of the cookies of ended logins, kept in a file until the cookies would have expired.

    Safe to use from any thread.

    Args:
        path: of the file; made with the first logout.
        clock: seconds since 1970.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._until = self._read()

    def end(self, cookies: Mapping[str, str]) -> None:
        """End the login of ``cookies``, if there is one."""
        payload = login_payload(cookies)
        if not payload:
            return
        now = self._clock()
        with self._lock:
            self._until = {key: until for key, until in self._until.items() if until > now}
            self._until[_hash(payload)] = now + _KEPT_SECONDS
            try:
                replace_file(self._path, json.dumps(self._until))
            except StorageFailed:  # it holds as long as this server runs
                _log.exception("a logout could not be stored")

    def covers(self, cookies: Mapping[str, str]) -> bool:
        """Return whether the login of ``cookies`` was ended."""
        payload = login_payload(cookies) if self._until else b""
        return bool(payload) and _hash(payload) in self._until

    def owner(self, cookies: Mapping[str, str]) -> str:
        """Return the owner that ``cookies`` log in; empty without a valid login."""
        return "" if self.covers(cookies) else owner_of(login_claims(cookies))

    def _read(self) -> dict[str, float]:
        try:
            return {str(key): float(until) for key, until in json.loads(self._path.read_bytes()).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError):
            _log.exception("the list of logouts cannot be read")
            return {}


@functools.cache
def _logouts(folder: Path) -> Logouts:
    return Logouts(folder / "logouts.json")


def logouts() -> Logouts:
    """Return this server's list."""
    return _logouts(home())


def _hash(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
