"""Loading torch and the model libraries, by one thread at a time."""

from __future__ import annotations

import threading

__all__ = ["load_engine"]

_loading = threading.Lock()


def load_engine() -> None:
    """Import everything a run needs; call it before anything of the engine is used in a thread.

    The modules of timm import each other. Where two threads import them at once, Python lets one see a module that is
    only half there, to avoid a deadlock; so the first one in does it all, and others wait.
    """
    with _loading:
        import senseapp.models.load
        import senseapp.sensitivity  # noqa: F401
