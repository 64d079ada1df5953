"""One user's checks of files: started, watched, and read again."""

from __future__ import annotations

import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from senseapp.core.errors import NotFound, SenseError
from senseapp.records.check import CheckReport, CheckSpec
from senseapp.records.jobs import JobSnapshot
from senseapp.records.spec import ModelSpec, RunSpec
from senseapp.server.access import Access
from senseapp.server.backend import Backend
from senseapp.server.check_jobs import JOB, CheckFolder, CheckTask, folder_of_checks
from senseapp.server.process.requester import ANYBODY, Requester
from senseapp.server.settings import check_paths

_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRecord:
    """One check as its owner finds it again.

    Attributes:
        title: both files by name.
        created_seconds: Unix time.
        report: None before it is finished, and where it failed.
        error: why there is no report; empty while it runs.
    """

    check_id: str
    title: str
    created_seconds: float
    report: CheckReport | None
    error: str


class Checks(Access):
    """Checks of one user. Ids come from addresses: any text is accepted, with NotFound unless it is one of theirs."""

    def __init__(self, backend: Backend, owner: str, requester: Requester = ANYBODY) -> None:
        super().__init__(backend, owner, requester)
        self._own = folder_of_checks(backend.home, owner)

    def start(self, spec: CheckSpec) -> str:
        """Queue a check and return its id; files are opened by a worker process, never here.

        Raises:
            InvalidInput: a file is outside the folders that this user may read.
            QueueFull: too many jobs wait.
            RateLimited: this user starts too many in a minute.
        """
        if not self._owner:
            raise NotFound("Nobody is logged in, so there is nobody to keep a check for. Log in first.")
        self._backend.rate_limiter.count(self._owner, "jobs on runs")
        readable = self._backend.readable_folders(self._owner)
        for model in (spec.reference, spec.candidate):
            check_paths(RunSpec(model=model, data=spec.data), (*readable, *self._folder_of_run(model)))
        self._forget_old()
        task = CheckTask(check_id=uuid.uuid4().hex, spec=spec, owner=self._owner)
        folder = CheckFolder(path=self._own / task.check_id)
        try:
            folder.begin(spec)
            self._backend.runner.submit(task, short=True, person=self._requester.turn_of(self._owner))
        except BaseException:  # QueueFull, or a full disk
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        return task.check_id

    def record(self, check_id: str) -> CheckRecord:
        """Return a check of this user."""
        folder = self._check(check_id)
        report, error = folder.report()
        return CheckRecord(
            check_id=check_id,
            title=folder.spec().title,
            created_seconds=folder.created_seconds,
            report=report,
            error=error,
        )

    def progress(self, check_id: str) -> JobSnapshot | None:
        """Return a snapshot of a check; None once it is not known to the queue any more."""
        self._check(check_id)
        return self._backend.runner.snapshot(f"{JOB}{check_id}")

    def cancel(self, check_id: str) -> None:
        """Request that a check stops."""
        self._check(check_id)
        self._backend.runner.cancel(f"{JOB}{check_id}")

    def recent(self) -> tuple[CheckRecord, ...]:
        """Return the checks of this user that are kept, the newest first; damaged ones are left out."""
        found = []
        for folder in self._all():
            with suppress(SenseError, OSError):
                found.append(self.record(folder.path.name))
        return tuple(found)

    def _folder_of_run(self, model: ModelSpec) -> tuple[Path, ...]:
        """Return the folder of the run that a file belongs to, if this user owns that run."""
        folder = Path(model.checkpoint).parent
        if not model.checkpoint or folder.parent != self._store.folder_of_runs:
            return ()
        self._store.owned(folder.name, self._owner)
        return (folder,)

    def _check(self, check_id: str) -> CheckFolder:
        folder = CheckFolder(path=self._own / check_id) if _ID.fullmatch(check_id) else None
        if folder is None or not folder.created_seconds:
            raise NotFound("There is no such check, or it is somebody else's. Check the files again.")
        return folder

    def _all(self) -> list[CheckFolder]:
        found = [CheckFolder(path=path) for path in self._own.glob("*") if _ID.fullmatch(path.name)]
        return sorted(found, key=lambda folder: -folder.created_seconds)

    def _forget_old(self) -> None:
        """Remove all but the newest 19 checks, before another is added."""
        waiting = {task.job_id for task in self._backend.runner.unfinished()}
        for folder in self._all()[19:]:
            if f"{JOB}{folder.path.name}" not in waiting:
                shutil.rmtree(folder.path, ignore_errors=True)
