"""The search for the strongest schedule within a drop, as a job: its outcome is a file of the run."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.results import StrongestFound
from senseapp.results.schedule import BudgetKind
from senseapp.service.engine import load_engine
from senseapp.service.run_task import TaskContext, key_of
from senseapp.service.verification import REPAIR
from senseapp.spec.limits import Limits


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
class StrongestSearch:
    """One such search in the results of a run."""

    run_id: str
    drop: DropLimit

    @property
    def key(self) -> str:
        """Names its file: the same for the same question, whoever asks."""
        drop, limits = self.drop, self.drop.limits
        asked = (
            *(drop.kind, drop.allowed_drop, drop.metric, drop.repair and REPAIR),
            *(limits.min_level, limits.max_level, sorted(limits.layers.items()), sorted(limits.fixed.items())),
        )
        return key_of(repr(asked))

    @property
    def job_id(self) -> str:
        """Names the job; no run, proof or histogram has such an id."""
        return f"{self.run_id}:strongest:{self.key}"

    def carry_out(self, context: TaskContext) -> StrongestFound:
        """Search, keep the outcome in the run's folder, and return it.

        Raises:
            NotFound: the run is not finished.
            InfeasibleBudget: even the gentlest schedule drops more.
            InvalidInput: the model, the images or the metric cannot be used.
            StorageFailed: the file cannot be written.
        """
        load_engine()
        from senseapp.validation import TestBench, strongest_schedule  # torch loads here, not when the app starts

        folder, progress = context.folder, context.observer.phase
        known = folder.load_strongest(self.key)
        if known is not None:
            return known
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
