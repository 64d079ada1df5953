"""One person's work on finished runs: proofs, searches and histograms are started, watched and read alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.jobs import JobSnapshot
from senseapp.records.schedule import StrongestFound, ValidationResult
from senseapp.runs.backend import Backend
from senseapp.runs.disk_space import check_run_room, disk_use
from senseapp.runs.tasks import FinishedRunTask, HistogramTask, StrongestSearch, Verification

OutcomeT = TypeVar("OutcomeT", ValidationResult, StrongestFound, QuantizationHistogram)
TaskT = TypeVar("TaskT", Verification, StrongestSearch, HistogramTask)


class Work:
    """Tasks name a run by its id, or, to look at what came of them, by its link."""

    def __init__(self, backend: Backend, owner: str) -> None:
        self._backend = backend
        self._owner = owner

    def start(self, task: TaskT) -> str:
        """Put a task in the queue and return the id of its job; what was done before is not done again.

        Raises:
            NotFound: there is no such run of this person.
            QueueFull: too many jobs wait.
            QuotaExceeded: there is no room for the files that it leaves.
            RateLimited: this person asks for too much in a minute.
        """
        store = self._backend.store
        store.owned(task.run_id, self._owner)
        if task.keeps_model:
            check_run_room(disk_use(store, self._owner, self._backend.settings))
        self._backend.carry_out(task)
        return task.job_id

    def progress(self, task: TaskT) -> JobSnapshot | None:
        """Return this moment of a task; None if it was not asked for since the app started."""
        return self._backend.runner.snapshot(self._readable(task).job_id)

    def cancel(self, task: TaskT) -> None:
        """Ask a task to stop."""
        self._backend.store.owned(task.run_id, self._owner)
        self._backend.runner.cancel(task.job_id)

    def outcome(self, task: FinishedRunTask[OutcomeT]) -> OutcomeT | None:
        """Return what came of a task, or None before it is done."""
        store = self._backend.store
        return task.outcome(store.folder(store.readable(task.run_id, self._owner)))

    def compressed_model(self, proof: Verification) -> tuple[Path, ...]:
        """Return the files of the compressed model: its state dict, and where channels were removed the network."""
        known = self._readable(proof)
        return known.files(self._backend.store.folder(known.run_id))

    def _readable(self, task: TaskT) -> TaskT:
        return replace(task, run_id=self._backend.store.readable(task.run_id, self._owner))
