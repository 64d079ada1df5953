"""The left side of the Schedule page: method, budget, limits; every change gives a new schedule at once."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from senseapp.results import ResourceBudget, Schedule, SensitivityResult
from senseapp.results.schedule import BudgetKind
from senseapp.schedule import Limits, budget_kinds, make_schedule
from senseapp.ui.frames import ordered_levels

__all__ = ["ScheduleSettings", "choose_schedule"]

_METHODS = {"optimal": "Least damage", "gamma": "Classic rule"}
_METHOD_HELP = (
    "**Least damage** chooses one level per layer so that the summed measured damage is smallest. "
    "**Classic rule** takes a layer the further down, the more it suffers; gamma says how much more."
)
_BUDGETS: dict[str, str] = {
    "params": "Weights removed",
    "bytes": "Bytes saved",
    "macs": "MACs saved",
    "bits": "Average bits",
}
_BUDGET_HELP = (
    "What the target counts, over all compressible layers: weights set to zero or removed, bytes of weights, "
    "multiply-accumulates, or the average number of bits per weight."
)
_BITS = (2, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """What a person asked for.

    Attributes:
        method: of :data:`senseapp.schedule.METHODS`.
        budget: what must be saved.
        limits: bounds on every layer.
        gamma: exponent of the classic rule.
    """

    method: str
    budget: ResourceBudget
    limits: Limits
    gamma: float

    def solve(self, result: SensitivityResult, *, method: str = "") -> Schedule:
        """Return the schedule, by another ``method`` on request.

        Raises:
            InfeasibleBudget: nothing meets the budget; names the nearest target that does.
            InvalidInput: the settings contradict each other, or nothing was measured.
        """
        return make_schedule(
            result, budget=self.budget, method=method or self.method, limits=self.limits, gamma=self.gamma
        )


def choose_schedule(run_id: str, result: SensitivityResult) -> ScheduleSettings:
    """Show the controls that fit the run's compression."""
    if result.spec.sensitivity.compression.kind == "quantization":
        return _choose_bits(run_id, result)
    return _choose_fractions(run_id)


def _choose_fractions(run_id: str) -> ScheduleSettings:
    method = st.segmented_control(
        "Method",
        list(_METHODS),
        default="optimal",
        required=True,
        format_func=_METHODS.__getitem__,
        key=f"schedule.method.{run_id}",
        help=_METHOD_HELP,
        persist_state="session",
    )
    kind = _choose_budget(run_id, budget_kinds("sparsity"))
    target = _percent("Target", 50, f"schedule.target.{run_id}", "How much must go, of what the budget counts.", low=1)
    low, high = st.slider(
        "Smallest and largest amount per layer",
        0,
        99,
        (0, 90),
        format="%d %%",
        key=f"schedule.limits.{run_id}",
        help="No layer gets less than the first or more than the second.",
        persist_state="session",
    )
    gamma = _choose_gamma(run_id) if method == "gamma" else 1.5
    return ScheduleSettings(
        method=method,
        budget=ResourceBudget(kind=kind, target=target / 100),
        limits=Limits(min_level=low / 100, max_level=high / 100),
        gamma=gamma,
    )


def _percent(label: str, value: int, key: str, help_text: str, *, low: int = 0) -> int:
    found: int = st.slider(label, low, 99, value, format="%d %%", key=key, help=help_text, persist_state="session")
    return found


def _choose_budget(run_id: str, kinds: tuple[BudgetKind, ...]) -> BudgetKind:
    chosen = st.selectbox(
        "Budget",
        kinds,
        format_func=_BUDGETS.__getitem__,
        key=f"schedule.budget.{run_id}",
        help=_BUDGET_HELP,
        persist_state="session",
    )
    return chosen if chosen in kinds else kinds[0]


def _choose_gamma(run_id: str) -> float:
    found: float = st.slider(
        "Gamma",
        0.0,
        5.0,
        1.5,
        0.1,
        key=f"schedule.gamma.{run_id}",
        help="0 treats all layers alike; larger values spare fragile layers more.",
        persist_state="session",
    )
    return found


def _choose_bits(run_id: str, result: SensitivityResult) -> ScheduleSettings:
    measured = [int(level) for level in ordered_levels(result)]
    target = st.slider(
        "Average bits",
        float(_BITS[0]),
        float(_BITS[1]),
        float(min(max(4, min(measured)), max(measured))),
        0.1,
        key=f"schedule.bits.{run_id}",
        help="Average number of bits over all weights of compressible layers; unmeasured layers count with 32.",
        persist_state="session",
    )
    low, high = st.select_slider(
        "Fewest and most bits per layer",
        [*range(_BITS[0], _BITS[1] + 1), 32],
        (min(measured), 32),
        key=f"schedule.limits.{run_id}",
        help="32 lets a layer stay as it is.",
        persist_state="session",
    )
    return ScheduleSettings(
        method="optimal",
        budget=ResourceBudget(kind="bits", target=target),
        limits=Limits(min_level=float(low), max_level=float(high)),
        gamma=1.5,
    )
