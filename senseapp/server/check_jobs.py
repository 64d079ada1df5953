"""Checks of files as jobs: the task that a worker process carries out, and the folder that it leaves its report in."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import ReadingStopped, SenseError, StorageFailed
from senseapp.core.files import DAY_SECONDS, remove_temporaries, replace_file, storage_errors
from senseapp.records.check import CheckReport, CheckSpec
from senseapp.records.jobs import JobSnapshot, RunState
from senseapp.server.process.requester import model_bytes
from senseapp.server.session import load_engine
from senseapp.server.tasks import RunObserver, TaskContext

JOB = "check:"
"""Begins the id of the job of each check; ids of runs have no colon."""
MOST_SECONDS = 1800.0
"""Longest time of a check on a server: a file may keep a library busy for ever."""
_SPEC, _REPORT, _ERROR = "spec.json", "report.json", "error.txt"
_INTERRUPTED = "senseapp stopped before this check was finished. Check the files again."
_CANCELLED = "This check was cancelled."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """The check of two files by ``owner``; weights beside files are read on the person's ``own_disk``."""

    check_id: str
    spec: CheckSpec
    owner: str = ""
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
        """Limit of memory beyond the engine: that of the larger network, and of all files."""
        models = self.spec.reference, self.spec.candidate
        return max(model_bytes(each, *{*self._files} - {each.checkpoint}) for each in models)

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
            self.spec, data_roots=context.data_roots, own_disk=self.own_disk, progress=context.observer.phase
        )
        CheckFolder(path=context.folder.path).save(report)
        return report


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFolder:
    """What is kept of one check: its settings, and its report or why there is none."""

    path: Path

    def begin(self, spec: CheckSpec) -> None:
        """Write the settings, with names of files only."""
        with storage_errors("the folder of checks"):
            self.path.mkdir(parents=True)
        replace_file(self.path / _SPEC, dumps(spec.without_folders()))

    def spec(self) -> CheckSpec:
        """Return the settings, with names of files only."""
        return loads((self.path / _SPEC).read_bytes(), CheckSpec)

    def save(self, report: CheckReport) -> None:
        """Write the report."""
        replace_file(self.path / _REPORT, dumps(report))

    def end(self, error: str) -> None:
        """Keep why there is no report."""
        if error and self.path.is_dir():
            replace_file(self.path / _ERROR, error)

    def report(self) -> tuple[CheckReport | None, str]:
        """Return the report and the error, each if known; a damaged file is an error."""
        report, error = self.path / _REPORT, self.path / _ERROR
        try:
            found = loads(report.read_bytes(), CheckReport) if report.is_file() else None
            return found, error.read_text("utf-8") if error.is_file() else ""
        except (SenseError, OSError, ValueError) as damage:
            return None, str(damage) or type(damage).__name__

    @property
    def created_seconds(self) -> float:
        """When it was asked for, in Unix time; 0 for a damaged one."""
        with suppress(OSError):
            return (self.path / _SPEC).stat().st_mtime
        return 0.0


def folder_of_checks(home: Path, owner: str) -> Path:
    """Return the folder of a user's checks; its name is a hash, so that no user text becomes a path."""
    return home / "checks" / hashlib.sha256(owner.encode()).hexdigest()[:32]


def _all_checks(home: Path) -> Iterator[CheckFolder]:
    return (CheckFolder(path=path) for path in (home / "checks").glob("*/*/"))


def recover_checks(home: Path) -> None:
    """Remove what a server that ended meanwhile left, and say of each check that did not end that it was interrupted.

    A check that was not begun, as no settings say, goes as a whole. The disk may be full or read-only: then the next
    start does it.
    """
    for folder in _all_checks(home):
        if not folder.created_seconds:
            shutil.rmtree(folder.path, ignore_errors=True)
            continue
        with suppress(StorageFailed):
            remove_temporaries(folder.path, beside_others=False)
            folder.end("" if any(folder.report()) else _INTERRUPTED)


def remove_untouched_checks(home: Path, keep_days: int) -> None:
    """Delete checks that were begun more than ``keep_days`` ago and have ended; 0 days keeps all."""
    oldest = time.time() - keep_days * DAY_SECONDS
    for folder in _all_checks(home) if keep_days else ():
        if folder.created_seconds < oldest and any(folder.report()):
            shutil.rmtree(folder.path, ignore_errors=True)


def reason_of(snapshot: JobSnapshot) -> str:
    """Return why a check that has ended left no report; empty where it did."""
    reasons = {RunState.CANCELLED: _CANCELLED, RunState.INTERRUPTED: _INTERRUPTED, RunState.DONE: ""}
    return reasons.get(snapshot.state, snapshot.error)


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
