"""Checks of files: the task that a worker process carries out, what is kept of it, and the checks of one user."""

from __future__ import annotations

import math
import re
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import NotFound, ReadingStopped, SenseError
from senseapp.core.files import DAY_SECONDS, remove_temporaries, replace_file, storage_errors
from senseapp.core.steps import SEPARATOR
from senseapp.records.check import CANDIDATE_RUNS, FILES_ARE_OPEN, CheckReport, CheckSpec, file_name
from senseapp.records.jobs import JobSnapshot, RunState
from senseapp.records.spec import ModelSpec, RunSpec, without_folders
from senseapp.server.access import Access
from senseapp.server.job_progress import PlannedStep
from senseapp.server.machine import load_engine
from senseapp.server.process.requester import ANYBODY, Requester, model_limits
from senseapp.server.settings import check_paths, owner_name
from senseapp.server.tasks import RunObserver, RunTask, TaskContext
from senseapp.store.run_folder import read_record

if TYPE_CHECKING:
    from senseapp.server.backend import Backend

JOB = "check:"
"""Begins the id of the job of each check; ids of runs have no colon."""
MOST_SECONDS = 1800.0
"""Longest time of a check on a server: a file may keep a library busy for ever."""
COMPILED = "compiled.onnx"
"""File for the simulated processor of a check, in its folder."""
_SPEC, _REPORT = "spec.json", "report.json"
_NO_REPORT = "There is no report: senseapp stopped before this check was finished, or it failed. Check the files again."
_CANCELLED = "This check was cancelled."
_IMAGES_DONE = re.compile(rf"{FILES_ARE_OPEN}{re.escape(SEPARATOR)}(\d+) of (\d+) images")
_TIMED_CALLS, _LEAST_REST_SECONDS = 100, 3.0  # of both files, about, to take times; of all after the images
_ID = re.compile(r"[0-9a-f]{32}")
_MOST_KEPT = 20  # of one user


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask(RunTask):
    """The check of two files by ``owner``; weights beside files are read on the person's ``own_disk``.

    It belongs to no run, and has an id of its own.
    """

    run_id: str
    spec: CheckSpec
    owner: str = ""
    own_disk: bool = False

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return f"{JOB}{self.run_id}"

    @property
    def most_bytes(self) -> float:
        """Limit of memory beyond the engine: that of the larger network, and of all files."""
        models = self.spec.reference, self.spec.candidate
        return max(model_limits(each, *{*self._files} - {each.checkpoint})[1] for each in models)

    @property
    def if_lost(self) -> str:
        """Nothing is kept, and trying again does not help: a file ends its runtime."""
        names = " or ".join(dict.fromkeys(file_name(each) for each in (self.spec.reference, self.spec.candidate)))
        return (
            f"{names} ended the process that ran it: it is damaged, its runtime fails on it, or memory ran out. "
            "Write the file again with the program that made it, or choose another."
        )

    @property
    def _files(self) -> tuple[str, str, str]:
        return self.spec.reference.checkpoint, self.spec.candidate.checkpoint, self.spec.data.path

    def reads(self, upload: str) -> bool:
        """Return whether it reads the upload in the folder of this name."""
        return any(Path(file).parent.name == upload for file in self._files)

    def carry_out(self, context: TaskContext) -> CheckReport:
        """Compare both files and keep the report; see :func:`senseapp.prove.check.check.check_files`."""
        load_engine()
        from senseapp.prove.check.check import check_files  # torch loads here, not when the app starts

        report = check_files(
            self.spec,
            data_roots=context.data_roots,
            own_disk=self.own_disk,
            context=context.folder.path / COMPILED if self.own_disk and self.spec.processor else None,
            progress=context.observer.phase,
        )
        replace_file(context.folder.path / _REPORT, dumps(report))
        return report


class CheckObserver(RunObserver):
    """Reports the steps, and a ``plan`` by the pace of the first images; stops a check after :data:`MOST_SECONDS`."""

    def __init__(
        self,
        report: Callable[[str], None],
        plan: Callable[[Sequence[PlannedStep], float], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._plan, self._clock, self._begun = report, plan, clock, clock()
        self._opened = math.inf  # when the first image ran; 0 once there is a plan

    def phase(self, sentence: str) -> None:
        """Report the step that begins."""
        self._report(sentence)
        now, counted = self._clock(), _IMAGES_DONE.fullmatch(sentence)
        if counted and self._opened:
            done, total = map(int, counted.groups())
            if done:
                passed = now - self._opened
                both = passed / done * total
                rest = passed / done * _TIMED_CALLS + _LEAST_REST_SECONDS
                seconds = {FILES_ARE_OPEN: both, CANDIDATE_RUNS: both, "Timing both files in turns": rest}
                self._plan([PlannedStep(title=title, seconds=each) for title, each in seconds.items()], passed)
            self._opened = 0.0 if done else now
        if now - self._begun > MOST_SECONDS:
            raise ReadingStopped(
                f"This check took longer than {MOST_SECONDS / 60:.0f} minutes, so it was stopped. Take fewer images."
            )


def read_report(folder: Path) -> CheckReport | None:
    """Return the report in the folder of a check, or None before there is one; see :func:`read_record`."""
    return read_record(folder / _REPORT, CheckReport)


def folder_of_checks(home: Path, owner: str) -> Path:
    """Return the folder of a user's checks."""
    return home / "checks" / owner_name(owner)


def sweep_checks(home: Path, keep_days: int, *, at_start: bool = False) -> None:
    """Delete checks that were begun more than ``keep_days`` ago; 0 days keeps all.

    At the start of a server also what an earlier one left half-written: files, and checks without settings.
    """
    oldest = time.time() - keep_days * DAY_SECONDS if keep_days else 0.0
    for folder in (home / "checks").glob("*/*/"):
        if at_start:
            remove_temporaries(folder, beside_others=False)
        begun = _begun_seconds(folder)
        if begun < oldest or (at_start and not begun):
            shutil.rmtree(folder, ignore_errors=True)


def _begun_seconds(folder: Path) -> float:
    """Return when a check was asked for, in Unix time; 0 for one that was not begun."""
    with suppress(OSError):
        return (folder / _SPEC).stat().st_mtime
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRecord:
    """One check as its owner finds it again: both files by name, Unix time, and the report or why there is none.

    While it runs, there is no report, and the error is empty.
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

        Raises InvalidInput where a file is outside the folders that this user may read, QueueFull, and RateLimited.
        """
        self.require_owner("a check")
        self._backend.rate_limiter.count(self._owner, "jobs on runs")
        readable = self._backend.readable_folders(self._owner)
        for model in (spec.reference, spec.candidate):
            check_paths(RunSpec(model=model, data=spec.data), (*readable, *self._folder_of_run(model)))
        waiting = {task.job_id for task in self._backend.runner.unfinished()}
        for old in self._all()[_MOST_KEPT - 1 :]:  # before another is added
            if f"{JOB}{old.name}" not in waiting:
                shutil.rmtree(old, ignore_errors=True)
        task = CheckTask(run_id=uuid.uuid4().hex, spec=spec, owner=self._owner)
        folder = self._own / task.run_id
        try:
            with storage_errors("the folder of checks"):
                folder.mkdir(parents=True)
            replace_file(folder / _SPEC, dumps(without_folders(spec)))
            self._backend.runner.submit(task, short=True, person=self._requester.turn_of(self._owner))
        except BaseException:  # QueueFull, or a full disk
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return task.run_id

    def record(self, check_id: str) -> CheckRecord:
        """Return a check of this user."""
        folder, job = self._check(check_id), self.progress(check_id)
        spec, report, error = loads((folder / _SPEC).read_bytes(), CheckSpec), None, ""
        try:
            report = read_report(folder)
        except SenseError as damage:
            error = str(damage)
        if report is None and not error and (job is None or job.state.finished):
            error = _CANCELLED if job and job.state is RunState.CANCELLED else (job and job.error) or _NO_REPORT
        return CheckRecord(
            check_id=check_id, title=spec.title, created_seconds=_begun_seconds(folder), report=report, error=error
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
                found.append(self.record(folder.name))
        return tuple(found)

    def _folder_of_run(self, model: ModelSpec) -> tuple[Path, ...]:
        """Return the folder of the run that a file belongs to, if this user owns that run."""
        folder = Path(model.checkpoint).parent
        if not model.checkpoint or folder.parent != self._store.folder_of_runs:
            return ()
        self._store.owned(folder.name, self._owner)
        return (folder,)

    def _check(self, check_id: str) -> Path:
        folder = self._own / check_id if _ID.fullmatch(check_id) else None
        if folder is None or not _begun_seconds(folder):
            raise NotFound("There is no such check, or it is somebody else's. Check the files again.")
        return folder

    def _all(self) -> list[Path]:
        found = [path for path in self._own.glob("*") if _ID.fullmatch(path.name)]
        return sorted(found, key=_begun_seconds, reverse=True)
