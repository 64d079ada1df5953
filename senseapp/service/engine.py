"""Loading torch and the model libraries, by one thread at a time."""

from __future__ import annotations

import gc
import sys
import threading

from senseapp.compressions import all_descriptions

_loading = threading.Lock()


def load_engine() -> None:
    """Import everything a run needs; call it before anything of the engine is used in a thread.

    The modules of timm import each other. Where two threads import them at once, Python lets one see a module that is
    only half there, to avoid a deadlock; so the first one in does it all, and others wait.

    What was loaded stays for good, so the garbage collector need not look at it again: while it looks through all of
    torch, no page is made.
    """
    with _loading:
        first = "senseapp.sensitivity" not in sys.modules
        import senseapp.models.load
        import senseapp.sensitivity  # noqa: F401

        for description in all_descriptions():
            description.load_compressor()

        if first:
            gc.collect()
            gc.freeze()


def runs_on_processor(device: str) -> bool:
    """Tell whether runs on ``device`` (a setting, which may be ``auto``) take this machine's own memory."""
    if device != "auto":
        return device == "cpu"
    load_engine()
    from senseapp.sensitivity.workbench import choose_device  # torch has loaded by now

    return choose_device(device).type == "cpu"
