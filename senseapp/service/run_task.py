"""Work on a finished run that goes through the queue and leaves files in the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from senseapp.store import RunFolder


class RunTask(Protocol):
    """One piece of such work; the run keeps its state whatever comes of it."""

    @property
    def run_id(self) -> str:
        """The run that it belongs to."""

    @property
    def job_id(self) -> str:
        """Names the job: the same for the same work, and never that of a run."""

    def carry_out(self, folder: RunFolder, *, progress: Callable[[str], None], data_roots: tuple[Path, ...]) -> object:
        """Do the work and keep its outcome in ``folder``; nothing is done twice."""
