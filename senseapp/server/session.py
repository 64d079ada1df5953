"""Loading of the engine and its sessions; earlier runs whose measurements can be reused."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from senseapp.core.errors import SenseError
from senseapp.descriptions import all_descriptions
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import Reused, RunResult
from senseapp.records.spec import RunSpec
from senseapp.store.run_store import RunStore

if TYPE_CHECKING:
    from senseapp.measure.executor import Executor
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


class OpenSession(Protocol):
    """Loads the model and the images of a spec."""

    def __call__(
        self,
        spec: RunSpec,
        *,
        data_roots: tuple[Path, ...],
        progress: Callable[[str], None],
        earlier: RunResult | None,
        find_alike: Callable[[str], RunResult | None],
    ) -> Session:
        """Return the prepared session.

        Args:
            spec: the settings.
            data_roots: folders that images may be read from; empty allows any.
            progress: receives one sentence before each long step, and now and then an empty one: it may raise to stop.
            earlier: result of the attempt to resume; its arithmetic is used again.
            find_alike: returns an earlier run for a hash over everything that determines this one's numbers.
        """


def open_local_session(
    spec: RunSpec,
    *,
    data_roots: tuple[Path, ...],
    progress: Callable[[str], None],
    earlier: RunResult | None,
    find_alike: Callable[[str], RunResult | None] = lambda content_key: None,
    executor: Executor | None = None,
) -> Session:
    """Prepare the engine's own session, which loads torch. ``executor`` None: this machine."""
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


_log = logging.getLogger(__name__)


class EarlierRuns:
    """Runs whose measurements may be reused; this one has none, so that a run measures everything itself."""

    def find(self, content_key: str) -> RunResult | None:
        """Return the measurements of an earlier run with this key, and store the key for this run."""
        return None

    def taken(self, count: int, total: int) -> Reused:
        """Return the record of ``count`` of ``total`` measurements reused from the found run."""
        raise NotImplementedError


class StoredRuns(EarlierRuns):
    """Finds the run with the most measurements among those of the same owner with the same content key.

    Runs of other users are excluded, so that their existence is not revealed.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._found: RunRecord | None = None

    def find(self, content_key: str) -> RunResult | None:
        """Return the measurements of the fullest such run, and store the key for later runs."""
        self._store.update(self._run_id, content_key=content_key)
        best: RunResult | None = None
        for record in self._store.with_content_key(self._run_id, content_key):
            with suppress(SenseError):  # deleted or damaged meanwhile: then everything is measured
                result = self._store.folder(record.run_id).so_far()
                if result is not None and len(result.measurements) > (len(best.measurements) if best else 0):
                    best, self._found = result, record
        return best

    def taken(self, count: int, total: int) -> Reused:
        """Record that ``count`` of ``total`` measurements were reused from the found run."""
        assert self._found is not None
        reused = Reused(title=self._found.title, taken=count, total=total)
        self._store.update(self._run_id, origin=reused.sentence)
        _log.info("run %s: %d of %d measurements from run %s", self._run_id, count, total, self._found.run_id)
        return reused
