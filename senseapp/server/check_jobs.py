"""Checks of files as jobs: the task that a worker process carries out, and the folder that it leaves its report in."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import ReadingStopped, SenseError, StorageFailed
from senseapp.core.files import DAY_SECONDS, remove_temporaries, replace_file, storage_errors
from senseapp.records.check import CheckReport, CheckSpec
from senseapp.records.jobs import JobSnapshot, RunState
from senseapp.records.spec import ModelSpec
from senseapp.server.process.requester import model_bytes
from senseapp.server.session import load_engine
from senseapp.server.tasks import RunObserver, TaskContext

JOB = "check:"
"""Begins the id of the job of each check; ids of runs have no colon."""
MOST_SECONDS = 1800.0
"""Longest time of a check on a server: a file may keep a library busy for ever."""
_SPEC, _REPORT, _ERROR = "spec.json", "report.json", "error.txt"
_FILES = ("reference", "candidate", "images")
_INTERRUPTED = "senseapp stopped before this check was finished. Check the files again."
_CANCELLED = "This check was cancelled."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """The check of two files in a folder of its own; weights beside files are read on the person's ``own_disk``."""

    check_id: str
    spec: CheckSpec
    own_disk: bool = False

    @property
    def run_id(self) -> str:
        """Its own id: it belongs to no run."""
        return self.check_id

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return f"{JOB}{self.check_id}"

    @property
    def most_bytes(self) -> float:
        """Limit of memory from the sizes of all files."""
        return check_bytes(self.spec)

    def carry_out(self, context: TaskContext) -> CheckReport:
        """Compare both files and keep the report; see :func:`senseapp.prove.check.check.check_files`."""
        load_engine()
        from senseapp.prove.check.check import check_files  # torch loads here, not when the app starts

        report = check_files(
            self.spec, data_roots=context.data_roots, own_disk=self.own_disk, progress=context.observer.phase
        )
        CheckFolder(context.folder.path).save(report)
        return report


def check_bytes(spec: CheckSpec) -> float:
    """Return the memory beyond the engine that a check may take: that of its larger network, and of its images."""
    files = spec.reference.checkpoint, spec.candidate.checkpoint, spec.data.path
    return max(model_bytes(model, *{*files} - {model.checkpoint}) for model in (spec.reference, spec.candidate))


class CheckFolder:
    """The files of one check: its settings, then the report or the error; uploads until then."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, spec: CheckSpec, *, is_upload: Callable[[Path], bool]) -> CheckSpec:
        """Write the settings, and link their uploads here, so that they exist during the check; return the settings."""
        with storage_errors("the folder of checks"):
            self.path.mkdir(parents=True)
        kept = replace(
            spec,
            reference=self._kept_model(spec.reference, "reference", is_upload),
            candidate=self._kept_model(spec.candidate, "candidate", is_upload),
            data=replace(spec.data, path=self._kept(spec.data.path, "images", is_upload)),
        )
        replace_file(self.path / _SPEC, dumps(spec.without_folders()))
        return kept

    def spec(self) -> CheckSpec:
        """Return the settings, with names of files only."""
        return loads((self.path / _SPEC).read_bytes(), CheckSpec)

    def save(self, report: CheckReport) -> None:
        """Write the report."""
        replace_file(self.path / _REPORT, dumps(report))

    def report(self) -> CheckReport | None:
        """Return the report; None before there is one."""
        path = self.path / _REPORT
        return loads(path.read_bytes(), CheckReport) if path.is_file() else None

    def recover(self) -> None:
        """Remove what a server that ended meanwhile left; a check that was not begun, as no spec says, goes as a whole.

        The disk may be full or read-only: then the next start does it.
        """
        if not self.created_seconds:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        with suppress(StorageFailed):
            remove_temporaries(self.path, beside_others=False)
            is_ended = any(read_report(self))
            self.end("" if is_ended else _INTERRUPTED)

    def end(self, error: str = "") -> None:
        """Remove the uploads; keep the reason where there is no report."""
        for name in _FILES:
            shutil.rmtree(self.path / name, ignore_errors=True)
        if error and self.path.is_dir():
            replace_file(self.path / _ERROR, error)

    def error(self) -> str:
        """Return why there is no report; empty until it is known."""
        path = self.path / _ERROR
        return path.read_text("utf-8") if path.is_file() else ""

    @property
    def created_seconds(self) -> float:
        """When it was asked for, in Unix time; 0 for a damaged one."""
        with suppress(OSError):
            return (self.path / _SPEC).stat().st_mtime
        return 0.0

    def _kept_model(self, model: ModelSpec, name: str, is_upload: Callable[[Path], bool]) -> ModelSpec:
        return replace(model, checkpoint=self._kept(model.checkpoint, name, is_upload))

    def _kept(self, path: str, name: str, is_upload: Callable[[Path], bool]) -> str:
        if not path or not is_upload(Path(path)):
            return path
        target = self.path / name / Path(path).name
        with storage_errors("the folder of checks"):
            target.parent.mkdir()
            try:
                os.link(path, target)
            except OSError:  # another disk, or one without links
                shutil.copyfile(path, target)
        return str(target)


def folder_of_checks(home: Path, owner: str) -> Path:
    """Return the folder of a user's checks; its name is a hash, so that no user text becomes a path."""
    return home / "checks" / hashlib.sha256(owner.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheck:
    """A check of ``person`` that waits or runs, and the folders that it may read."""

    person: str
    task: CheckTask
    folder: CheckFolder
    data_roots: tuple[Path, ...]


class CheckJobs:
    """The checks of all users.

    Attributes:
        pending: those that wait or run in this process, by the ids of their jobs.
    """

    def __init__(self, home: Path) -> None:
        self.pending: dict[str, PendingCheck] = {}
        self._home = home
        for folder in self._all():
            folder.recover()

    def remove_untouched(self, keep_days: int) -> None:
        """Delete checks that were begun more than ``keep_days`` ago and have ended; 0 days keeps all."""
        oldest = time.time() - keep_days * DAY_SECONDS
        for folder in self._all() if keep_days else ():
            if folder.created_seconds < oldest and any(read_report(folder)):
                shutil.rmtree(folder.path, ignore_errors=True)

    def _all(self) -> list[CheckFolder]:
        return [CheckFolder(path) for path in (self._home / "checks").glob("*/*/")]

    def keep_end(self, snapshot: JobSnapshot) -> bool:
        """Keep the end of a check; return whether the job is one."""
        check = self.pending.get(snapshot.run_id)
        if check is None:
            return snapshot.run_id.startswith(JOB)
        if snapshot.state.finished:
            reasons = {RunState.CANCELLED: _CANCELLED, RunState.INTERRUPTED: _INTERRUPTED, RunState.DONE: ""}
            try:
                check.folder.end(reasons.get(snapshot.state, snapshot.error))
            finally:  # the disk may be full
                del self.pending[snapshot.run_id]
        return True


class CheckObserver(RunObserver):
    """Reports the steps of a check; stops one that lasts longer than :data:`MOST_SECONDS`."""

    def __init__(self, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock, self._begun = report, clock, clock()

    def phase(self, sentence: str) -> None:
        """Report the step that begins."""
        self._report(sentence)
        if self._clock() - self._begun > MOST_SECONDS:
            raise ReadingStopped(
                f"This check took longer than {MOST_SECONDS / 60:.0f} minutes, so it was stopped. Take fewer images."
            )


def read_report(folder: CheckFolder) -> tuple[CheckReport | None, str]:
    """Return the report of a check and its error, each if known; a damaged file is an error."""
    try:
        return folder.report(), folder.error()
    except (SenseError, OSError, ValueError) as error:
        return None, str(error) or type(error).__name__
