"""Snapshot of a job for pages, and the stored record of a run."""

import enum
from dataclasses import dataclass

from senseapp.records.spec import RunSpec


class RunState(enum.StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self not in (RunState.QUEUED, RunState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """One moment of a job.

    Attributes:
        phase, detail: what happens now, in everyday words (``Measuring each layer: 5 of 18``) and exactly.
        share: of the bar over all steps; None where only the number of measurements is known.
        done, total: measurements finished and planned; total 0 means not yet known.
        queue_place: 1 for the next to start in its lane; 0 when not waiting.
        behind: id of the job at work that it waits for; empty when not waiting, or where that is not known.
        behind_seconds: what that job still takes; None while unknown.
        error: the sentence to show if it failed.
    """

    run_id: str
    state: RunState
    phase: str = ""
    detail: str = ""
    share: float | None = None
    done: int = 0
    total: int = 0
    elapsed_seconds: float = 0.0
    remaining_seconds: float | None = None
    queue_place: int = 0
    behind: str = ""
    behind_seconds: float | None = None
    error: str = ""

    @property
    def fraction(self) -> float:
        """Share done, from 0 to 1; it is 1 only once all is done."""
        if self.state is RunState.DONE:
            return 1.0
        if self.share is not None:
            return self.share
        return min(1.0, self.done / self.total) if self.total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as the store keeps it.

    Attributes:
        run_id: unguessable; of a run that was opened by its link, the link.
        owner: ``local`` without login; empty for whoever opened the run by its link.
        created_seconds, updated_seconds: Unix time.
        headline, error: the result in one sentence, or that to show if it failed; empty until there is one.
        link: whoever has it may read the run; empty while it is not shared.
        read_only: whether it was opened by its link.
        num_bytes: disk space of its files, as last counted.
        origin: one sentence, if it was imported or took measurements from another run.
    """

    run_id: str
    owner: str
    title: str
    spec: RunSpec
    state: RunState
    created_seconds: float
    updated_seconds: float
    headline: str = ""
    error: str = ""
    link: str = ""
    read_only: bool = False
    owner_name: str = ""
    num_bytes: int = 0
    origin: str = ""
    tags: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether anybody with the link may read it."""
        return bool(self.link)
