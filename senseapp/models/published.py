"""Published weights: whether they can be had now, and what to say when they cannot."""

from __future__ import annotations

import socket
import urllib.request
from urllib.parse import urlsplit

from senseapp.errors import InvalidCheckpoint

_CONNECT_SECONDS = 3.0


def is_reachable(url: str) -> bool:
    """Return whether the server of ``url`` answers; True behind a proxy, where only the request itself can tell.

    Asked first because the libraries' own calls retry for most of a minute before they give up.
    """
    address = urlsplit(url)
    if address.scheme in urllib.request.getproxies():
        return True
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def unavailable(title: str) -> InvalidCheckpoint:
    """Return the error that offers the ways that work offline."""
    return InvalidCheckpoint(
        f"The published weights of {title} could not be downloaded, and they are not in this machine's cache. "
        "Upload a checkpoint of it, measure with random weights, or try the demo, which needs no network."
    )
