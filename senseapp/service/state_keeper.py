"""The states of runs on their way to the store: kept in memory while the disk refuses them."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace

from senseapp.errors import NotFound, StorageFailed
from senseapp.results import JobSnapshot, RunRecord, RunState
from senseapp.store import INTERRUPTED_SENTENCE, RunStore

_log = logging.getLogger(__name__)


class StateKeeper:
    """Writes changes of state, and tries again with every later one and every look at a run.

    A run whose end could not be stored would else look as if it ran for ever.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[str, JobSnapshot] = {}

    def keep(self, snapshot: JobSnapshot) -> None:
        """Store the state of a run, or remember it.

        Raises:
            StorageFailed: it is only remembered.
        """
        with self._lock:
            self._waiting[snapshot.run_id] = snapshot
            self._write_all()

    def up_to_date(self, record: RunRecord) -> RunRecord:
        """Return ``record`` with the state it has; stored now if the disk takes it again."""
        if not self._waiting:
            return record
        with self._lock:
            newer = self._waiting.get(record.run_id)  # looked up first: ``record`` was read before it is written now
            with suppress(StorageFailed):
                self._write_all()
        return record if newer is None else replace(record, state=newer.state, error=newer.error)

    def _write_all(self) -> None:
        for run_id, snapshot in list(self._waiting.items()):
            self._write(snapshot)
            del self._waiting[run_id]

    def _write(self, snapshot: JobSnapshot) -> None:
        interrupted = snapshot.state is RunState.INTERRUPTED
        known = {"done": snapshot.done, "total": snapshot.total} if snapshot.total else {}
        try:
            self._store.set_state(
                snapshot.run_id,
                snapshot.state,
                error=INTERRUPTED_SENTENCE if interrupted else snapshot.error,
                done=known.get("done"),
                total=known.get("total"),
            )
        except NotFound:
            _log.info("run %s was deleted before it ended", snapshot.run_id)
