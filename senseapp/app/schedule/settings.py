"""What a person asked for on the Schedule page, the schedule that answers it, and one from a file in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, named, one_of
from senseapp.app.common.notices import errors_here
from senseapp.app.common.run_guard import run_line
from senseapp.app.common.uploads import expect_files, read_upload
from senseapp.core.errors import NotFound
from senseapp.descriptions.runtimes import RUNTIMES, usual_runtime
from senseapp.records.layer_times import MILLISECONDS, LayerTimes
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.server.schedule_tasks import DropLimit
from senseapp.solve.curve_set import damage_metric
from senseapp.solve.methods import mixed_schedule
from senseapp.solve.problem import budget_of
from senseapp.solve.time_budget import schedule_within
from senseapp.solve.trade_off import schedule_for


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeGoal:
    """How long a call of the network may take, and how long its layers do."""

    times: LayerTimes
    most_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """What a person asked for.

    Attributes:
        method: of :data:`senseapp.solve.methods.METHODS`.
        budget: what must be saved.
        limits: bounds on layers, and locked ones.
        gamma: exponent of the classic rule.
        drop: what may be lost, where that is asked for in place of a budget.
        partner: the results of another compression of the same model, chosen together with this one.
        time: what a call may take, in place of the budget; ``awaits_times`` while that is asked for but not known.
    """

    method: str
    budget: ResourceBudget
    limits: Limits = field(default_factory=Limits)
    gamma: float = 1.5
    drop: DropLimit | None = None
    partner: RunResult | None = None
    time: TimeGoal | None = None
    awaits_times: bool = False

    @property
    def kind(self) -> str:
        """What the target counts: the kind of a budget, or milliseconds."""
        return MILLISECONDS if self.time is not None else self.budget.kind

    def solve(self, result: RunResult, *, method: str = "", groups: Sequence[CoupledGroup] = ()) -> Schedule:
        """Return the schedule, by another ``method`` on request.

        With ``groups``, what shrinks together when channels go, budgets of pruning are truly met.

        Raises:
            InfeasibleBudget: nothing meets the budget; names the nearest target that does.
            InvalidInput: the settings contradict each other, or nothing was measured.
        """
        if self.time is not None:
            return schedule_within(result, self.time.times, self.time.most_seconds, limits=self.limits)
        if self.partner is not None and not method:
            limits = {result.spec.sensitivity.compression.kind: self.limits}
            return mixed_schedule(result, self.partner, budget=self.budget, limits=limits)
        chosen = method or self.method
        return schedule_for(result, self.budget, method=chosen, limits=self.limits, gamma=self.gamma, groups=groups)


def choose_runtime(run_id: str, *, setting: str = "runtime") -> str:
    """Let a person choose a runtime where several are installed; return the name of the chosen or the only one.

    ``setting`` names the choice in the address.
    """
    if len(RUNTIMES) == 1:
        return usual_runtime()
    chosen: str = st.segmented_control(
        "Runtime",
        list(RUNTIMES),
        required=True,
        format_func=lambda name: RUNTIMES[name].label,
        **bound(run_id, setting, one_of(RUNTIMES), usual_runtime(), key=f"schedule.{setting}.{run_id}"),
        help="The program that the file is written for, and measured in.",
    )
    return chosen


def choose_partner(run_id: str) -> RunResult | None:
    """Offer to combine sparsity and quantization where both were measured; return the other run's results, or None."""
    records = backend.service().schedules.partners(run_id)
    if not records:
        return None
    partners = {record.run_id: f"{record.title}: {run_line(record)}" for record in records}
    chosen = st.selectbox(
        "Combine with",
        ["", *partners],
        format_func=lambda name: partners.get(name, "nothing: this compression alone"),
        **bound(run_id, "with", named({name: name for name in ("", *partners)}), "", key=f"schedule.partner.{run_id}"),
        help="Each layer gets zeros, fewer bits, or both, whichever does the least damage for the bytes it saves.",
    )
    if chosen not in partners:
        return None
    try:
        return backend.result_of(chosen)
    except NotFound:  # deleted a moment ago in another window
        return None


def partner_id(run_id: str) -> str:
    """Return the run that :func:`choose_partner` showed as chosen; empty for none."""
    return str(st.session_state.get(f"schedule.partner.{run_id}") or "")


_MOST_MEGABYTES = 5


def schedule_file(run_id: str, result: RunResult) -> Schedule | None:
    """Offer to open a file of senseapp's own; return its schedule, or None while there is no usable one.

    Somebody who is not logged in cannot send files.
    """
    if not backend.visitor().is_known:
        return None
    with st.expander("Open a schedule file", icon=":material/upload_file:"):
        expect_files()
        uploaded = st.file_uploader(
            "Schedule file",
            type=["json", "yaml", "yml", "csv"],
            key=f"schedule.file.{run_id}",
            help="JSON, YAML or CSV that senseapp wrote for this model. It stands in place of the settings above.",
            max_upload_size=_MOST_MEGABYTES,
        )
        if uploaded is not None:
            with errors_here():
                content = read_upload(uploaded, most_megabytes=_MOST_MEGABYTES)
                schedule = backend.service().inputs.read_schedule(content, result.profile)
                metric = schedule.metric or damage_metric(result)  # a file of rows alone has no figures
                opened = replace(schedule, metric=metric, achieved=budget_of(schedule, result) | schedule.achieved)
                st.markdown("This schedule is shown in place of the settings above. Remove the file to go back.")
                return opened
    return None
