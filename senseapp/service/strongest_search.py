"""The search for the strongest schedule within a drop, as a job: its outcome is a file of the run."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.compressions import BudgetKind
from senseapp.results import StrongestFound
from senseapp.service.run_task import FinishedRunTask, TaskContext, key_of
from senseapp.service.verification import REPAIR
from senseapp.spec.limits import Limits
from senseapp.store import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLimit:
    """How much may be lost, and what is tightened until that much is.

    Attributes:
        kind: the budget that is tightened.
        allowed_drop: in the unit of ``metric``: a fraction for accuracies, nats for loss and KL.
        metric: what must not drop further.
        repair: whether schedules are repaired without training, where they measure better so.
        limits: bounds and fixed levels of layers.
    """

    kind: BudgetKind
    allowed_drop: float
    metric: str
    repair: bool
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class StrongestSearch(FinishedRunTask[StrongestFound]):
    """One such search in the results of a run."""

    drop: DropLimit

    @property
    def key(self) -> str:
        """Names its file."""
        drop, limits = self.drop, self.drop.limits
        asked = (
            *(drop.kind, drop.allowed_drop, drop.metric, drop.repair and REPAIR),
            *(limits.min_level, limits.max_level, sorted(limits.layers.items()), sorted(limits.fixed.items())),
        )
        return key_of(repr(asked))

    def outcome(self, folder: RunFolder) -> StrongestFound | None:
        """Return the schedule found, or None before it is."""
        return folder.load_strongest(self.key)

    def find_out(self, context: TaskContext) -> StrongestFound:
        """Search.

        Raises:
            InfeasibleBudget: even the gentlest schedule drops more.
        """
        from senseapp.validation import TestBench, strongest_schedule  # torch loads here, not when the app starts

        folder, progress = context.folder, context.observer.phase
        progress("Loading the model and the images")
        found = strongest_schedule(
            TestBench.open(folder.load_result(), data_roots=context.data_roots, progress=progress),
            self.drop.kind,
            self.drop.allowed_drop,
            metric=self.drop.metric,
            repair=self.drop.repair,
            limits=self.drop.limits,
        )
        folder.save_strongest(self.key, found)
        return found
