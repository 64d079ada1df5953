"""The trade-off on the Schedule page: damage against savings, with a click that takes a point."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from senseapp.errors import SenseError
from senseapp.metrics import METRICS
from senseapp.results import Schedule, SensitivityResult, StrongestFound
from senseapp.results.coupling import CoupledGroup
from senseapp.schedule import TradeOffPoint, damage_metric, trade_off
from senseapp.ui import backend
from senseapp.ui.charts.axes import PICK
from senseapp.ui.charts.trade_off import trade_off_chart
from senseapp.ui.components.figure import figure
from senseapp.ui.components.notices import complain
from senseapp.ui.components.schedule_controls import take_target
from senseapp.ui.components.schedule_settings import ScheduleSettings
from senseapp.ui.trade_off_frames import measured_frame, predicted_frame, shown_figure
from senseapp.ui.wording import caveat_of

_NAMES = {"optimal": "Least damage", "uniform": "Uniform", "gamma": "Classic rule"}
_POINTS = {"optimal": 25, "uniform": 13, "gamma": 13}
_STEPS = {"bits": 0.1}
_TITLES = {
    "params": "Weights removed (%)",
    "bytes": "Bytes saved if stored compactly (%)",
    "macs": "MACs saved (%)",
    "bits": "Average bits",
}
_KEPT = 32


def trade_off_view(
    run_id: str,
    result: SensitivityResult,
    settings: ScheduleSettings,
    schedule: Schedule | None,
    *,
    groups: Sequence[CoupledGroup] = (),
    found: StrongestFound | None = None,
) -> None:
    """Draw the curve of every method that fits, with the measured schedules; a click moves the target there."""
    kind, metric = settings.budget.kind, damage_metric(result)
    try:
        curves = _curves(run_id, result, settings, tuple(groups))
        measured = measured_frame(backend.service().validations(run_id), found, kind=kind, metric=metric)
    except SenseError as error:
        complain(str(error))
        return
    predicted = predicted_frame(curves.items(), metric)
    if predicted.empty:
        return
    view = METRICS[metric]
    now = schedule.achieved.get(kind) if schedule is not None else None
    chart = trade_off_chart(
        predicted,
        measured,
        now=shown_figure(kind, settings.budget.target if now is None else now),
        x_title=_TITLES[kind],
        y_title=view.axis if view.higher_is_better else f"{view.label} ({view.change_unit})",
        notable=view.factor * view.notable,
    )
    key = f"schedule.trade_off.{kind}.{run_id}"
    figure(
        "What would more cost?",
        chart,
        alt_text=f"Predicted {view.change_inside} against savings: {'; '.join(predicted['description'].iloc[::6])}",
        key=key,
        on_pick=lambda: _take(key, run_id, result, kind),
        reading="Lines are predicted from the layers alone; marks are whole schedules that were measured, with their "
        "95 % interval. Click a dot to take its schedule. The dashed line is where you are.",
        caveat=caveat_of(result),
        data=pd.concat([predicted, measured]) if len(measured) else predicted,
    )


def _take(key: str, run_id: str, result: SensitivityResult, kind: str) -> None:
    picked = st.session_state[key]["selection"].get(PICK) or []
    if picked:
        figure = float(picked[0]["figure"])
        take_target(run_id, result, kind, figure if kind == "bits" else figure / 100)


def _curves(
    run_id: str, result: SensitivityResult, settings: ScheduleSettings, groups: tuple[CoupledGroup, ...]
) -> dict[str, tuple[TradeOffPoint, ...]]:
    """Return the curve of each method that this compression allows, the optimal one first."""
    limits = settings.limits
    asked = (
        *(run_id, len(result.measurements), settings.budget.kind, settings.gamma, len(groups)),
        *(limits.min_level, limits.max_level),
        *(tuple(sorted(limits.layers.items())), tuple(sorted(limits.fixed.items()))),
    )
    methods = ["optimal", "uniform"]
    if result.spec.sensitivity.compression.scale.any_between:
        methods.append("gamma")
    return {_NAMES[method]: _curve(asked, method, result, settings, groups) for method in methods}


@st.cache_data(show_spinner=False, max_entries=_KEPT)
def _curve(
    asked: tuple[object, ...],
    method: str,
    _result: SensitivityResult,
    _settings: ScheduleSettings,
    _groups: tuple[CoupledGroup, ...],
) -> tuple[TradeOffPoint, ...]:
    """Return one curve; ``asked`` names everything that decides it."""
    kind = _settings.budget.kind
    try:
        return trade_off(
            _result,
            kind,
            _POINTS[method],
            method=method,
            limits=_settings.limits,
            gamma=_settings.gamma,
            step=_STEPS.get(kind, 0.01),
            groups=_groups,
        )
    except SenseError:
        if method == "optimal":
            raise
        return ()  # 2:4 sparsity has no classic rule: the other lines say all there is
