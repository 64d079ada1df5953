"""The trade-off on the Schedule page, damage against savings: a chart to click."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.expert import metric_shown
from senseapp.app.common.figure import figure
from senseapp.app.common.notices import complain, show_notes
from senseapp.app.schedule.controls import take_target
from senseapp.app.schedule.settings import ScheduleSettings
from senseapp.core.errors import SenseError
from senseapp.records.deployment import MILLISECONDS
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import Schedule, StrongestFound
from senseapp.solve.curve_set import damage_metric
from senseapp.solve.time_budget import time_trade_off
from senseapp.solve.trade_off import TradeOffPoint, too_large, trade_off
from senseapp.views.charts.axes import PICK
from senseapp.views.charts.savings import damage_channel, models_chart
from senseapp.views.frames import files
from senseapp.views.words.wording import caveat_of

_METHODS = {files.OURS: ("optimal", 25), files.UNIFORM: ("uniform", 13), files.PROPORTIONAL: ("gamma", 13)}
"""Method and number of targets of each curve: each is a solved schedule, and the best one bends."""

_QUESTIONS = {"bits": "What do fewer bits cost?", MILLISECONDS: "What does a shorter time cost?"}


def trade_off_view(
    run_id: str,
    result: RunResult,
    settings: ScheduleSettings,
    schedule: Schedule | None,
    *,
    groups: Sequence[CoupledGroup] = (),
    found: StrongestFound | None = None,
) -> None:
    """Draw the curve of every method that fits, with the measured schedules; a click moves the target there."""
    kind, view = settings.kind, metric_shown(damage_metric(result), result)
    if settings.awaits_times:
        st.caption("The trade-off follows once the times of the layers are known.")
        return
    if large := too_large(result):
        text = f"{large} are too large for the trade-off here, and for the uniform schedule beside this one."
        show_notes([f"{text} Choose a goal above: one schedule at a time is solved."])
        return
    try:
        asked = f"{run_id} {len(result.measurements)} {kind} {settings.gamma} {len(groups)} {settings.limits}"
        if settings.times is not None:
            asked += f" {settings.times.source} {len(settings.times.times)}"
        curves = _curves(asked, result, settings, tuple(groups))
        measured = files.measured_frame(backend.service().validations(run_id), found, kind=kind, view=view)
    except SenseError as error:
        complain(str(error))
        return
    rows = pd.concat([files.predicted_frame(curves, view), measured])
    if rows.empty:
        return
    now = schedule.achieved.get(kind) if schedule is not None else None
    if now is None:
        now = settings.budget.target if settings.times is None else 1000 * settings.most_seconds
    key = f"schedule.trade_off.{kind}.{run_id}"
    figure(
        _QUESTIONS.get(kind, "What does removing more cost?"),
        models_chart(
            rows,
            x_title=files.AXES[kind],
            y=damage_channel(rows, view.axis, float(view.shown(view.notable))),
            rule={"x": files.shown_figure(kind, now)},
            falling=kind in files.AS_THEY_ARE,
            picks=files.OURS,
            height=380,
        ),
        alt_text=f"Predicted {view.change_inside} against savings: {'; '.join(rows['description'].iloc[::6])}",
        key=key,
        about=f"{view.label}: {view.help}",
        on_pick=lambda: _take(key, run_id, result, kind),
        reading="Lines are predicted from the layers alone; marks are whole schedules that were measured, with their "
        "95 % interval. Click a dot to take its schedule. The dashed line is where you are.",
        caveat=caveat_of(result),
        data=rows,
    )


def _take(key: str, run_id: str, result: RunResult, kind: str) -> None:
    picked = st.session_state[key]["selection"].get(PICK) or []
    if picked:
        figure = float(picked[0]["figure"])
        take_target(run_id, result, kind, figure if kind in files.AS_THEY_ARE else figure / 100)


@st.cache_data(show_spinner=False, max_entries=12)  # curves of runs and limits, of all sessions
def _curves(
    asked: str, _result: RunResult, _settings: ScheduleSettings, _groups: tuple[CoupledGroup, ...]
) -> dict[str, tuple[TradeOffPoint, ...]]:
    """Return the curve of each method that this compression allows, the optimal one first.

    ``asked`` names everything that decides them.
    """
    kind, limits = _settings.budget.kind, _settings.limits
    if _settings.times is not None:
        return {files.OURS: time_trade_off(_result, _settings.times, limits=limits)}
    solve = partial(
        trade_off, limits=limits, gamma=_settings.gamma, step=0.1 if kind == "bits" else 0.01, groups=_groups
    )
    curves = {}
    for name, (method, points) in _METHODS.items():
        if method != "gamma" or _result.compression.scale.any_between:
            try:
                curves[name] = solve(_result, kind, points, method=method)
            except SenseError:
                if name == files.OURS:  # 2:4 sparsity has no other methods
                    raise
    return curves
