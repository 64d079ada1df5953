"""Loading of the engine and of its sessions."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from senseapp.descriptions import all_descriptions
from senseapp.records.measurement import RunResult
from senseapp.records.spec import RunSpec

if TYPE_CHECKING:
    from senseapp.measure.measurer import Executor
    from senseapp.measure.session import Session


_loading = threading.Lock()
_ENGINE = (
    *("senseapp.measure.session", "senseapp.measure.quick.scan", "senseapp.measure.histograms"),
    "senseapp.networks.sources.load",
)


def load_engine() -> None:
    """Import everything a run needs; call it before the engine is used in a thread.

    The modules of timm import each other: two threads that import them at once may see half-loaded modules, so the
    first one imports all. The garbage collector skips the loaded objects, since a scan of torch would delay pages.
    """
    with _loading:
        first = _ENGINE[0] not in sys.modules
        if first:
            from senseapp.compat.torch_internals import import_without_compiler  # torch loads here

            import_without_compiler("torchvision", "timm")
        for module in _ENGINE:
            import_module(module)
        for description in all_descriptions():
            description.load_compressor()

        if first:
            gc.collect()
            gc.freeze()


def runs_on_processor(device: str) -> bool:
    """Return whether runs on ``device`` (a setting, which may be ``auto``) use this machine's own memory."""
    if device != "auto":
        return device == "cpu"
    load_engine()
    from senseapp.measure.context import choose_device  # torch has loaded by now

    return choose_device(device).type == "cpu"


OpenSession: TypeAlias = "Callable[..., Session]"
"""Loads the model and the images of a spec; takes the arguments of :func:`open_local_session` but the last."""


def open_local_session(
    spec: RunSpec,
    *,
    data_roots: tuple[Path, ...],
    progress: Callable[[str], None],
    earlier: RunResult | None,
    find_alike: Callable[[str], RunResult | None] = lambda content_key: None,
    executor: Executor | None = None,
) -> Session:
    """Prepare the engine's own session, which loads torch.

    Args:
        spec: the settings.
        data_roots: folders that images may be read from; empty allows any.
        progress: receives one sentence before each long step, and now and then an empty one: it may raise to stop.
        earlier: result of the attempt to resume; its arithmetic is used again.
        find_alike: returns an earlier run for a hash over everything that determines this one's numbers.
        executor: carries out the passes; None: this machine.
    """
    load_engine()
    from senseapp.measure.reuse import arithmetic_of  # torch loads here, not when the app starts
    from senseapp.measure.session import Session

    layout, span_images = (None, None) if earlier is None else arithmetic_of(earlier)
    return Session.open(
        spec if earlier is None else earlier.spec,
        data_roots=data_roots,
        progress=progress,
        layout=layout,
        span_images=span_images,
        executor=executor,
        find_alike=find_alike,
    )
