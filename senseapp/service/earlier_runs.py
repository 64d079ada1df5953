"""Earlier runs of the same person that measured the same, as the store keeps them."""

from __future__ import annotations

import logging
from contextlib import suppress

from senseapp.errors import SenseError
from senseapp.results import RunRecord, SensitivityResult
from senseapp.results.reuse import Reused
from senseapp.store import RunStore

_log = logging.getLogger(__name__)


class StoredRuns:
    """Finds the run with the most measurements among those of the same owner with the same content key.

    Nobody else's runs are looked at: that they exist is not for others to know.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._found: RunRecord | None = None

    def find(self, content_key: str) -> SensitivityResult | None:
        """Return what the fullest such run has measured, and keep the key for runs to come."""
        self._store.set_content(self._run_id, content_key)
        best: SensitivityResult | None = None
        for record in self._store.alike(self._run_id, content_key):
            with suppress(SenseError):  # deleted or damaged meanwhile: then everything is measured
                result = self._store.folder(record.run_id).so_far()
                if result is not None and len(result.measurements) > (len(best.measurements) if best else 0):
                    best, self._found = result, record
        return best

    def taken(self, count: int, total: int) -> Reused:
        """Record that ``count`` of ``total`` measurements come from the run that was found."""
        assert self._found is not None
        reused = Reused(title=self._found.title, taken=count, total=total)
        self._store.set_origin(self._run_id, reused.sentence)
        _log.info("run %s: %d of %d measurements from run %s", self._run_id, count, total, self._found.run_id)
        return reused
