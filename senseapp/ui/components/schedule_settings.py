"""What a person asked for on the Schedule page, and the schedule that answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from senseapp.results import ResourceBudget, Schedule, SensitivityResult
from senseapp.results.coupling import CoupledGroup
from senseapp.schedule import Limits, make_schedule, mixed_schedule, truly_sized
from senseapp.service import DropLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """What a person asked for.

    Attributes:
        method: of :data:`senseapp.schedule.METHODS`.
        budget: what must be saved.
        limits: bounds on layers, and locked ones.
        gamma: exponent of the classic rule.
        drop: what may be lost, where that is asked for in place of a budget.
        partner: the results of another compression of the same model, chosen together with this one.
    """

    method: str
    budget: ResourceBudget
    limits: Limits = field(default_factory=Limits)
    gamma: float = 1.5
    drop: DropLimit | None = None
    partner: SensitivityResult | None = None

    def solve(self, result: SensitivityResult, *, method: str = "", groups: Sequence[CoupledGroup] = ()) -> Schedule:
        """Return the schedule, by another ``method`` on request.

        Args:
            result: of the run.
            method: in place of the one asked for.
            groups: what shrinks together when channels go; with them, budgets of pruning are truly met.

        Raises:
            InfeasibleBudget: nothing meets the budget; names the nearest target that does.
            InvalidInput: the settings contradict each other, or nothing was measured.
        """
        if self.partner is not None and not method:
            return self._mixed(result, self.partner)

        def make(target: float) -> Schedule:
            budget = replace(self.budget, target=target)
            chosen = method or self.method
            return make_schedule(result, budget=budget, method=chosen, limits=self.limits, gamma=self.gamma)

        return truly_sized(make, result.profile, groups, self.budget) if groups else make(self.budget.target)

    def _mixed(self, result: SensitivityResult, partner: SensitivityResult) -> Schedule:
        own = result.spec.sensitivity.compression.kind
        return mixed_schedule(result, partner, budget=self.budget, limits={own: self.limits})
