"""The trade-off on the Schedule page, damage against savings: its data frames, and a chart to click."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.figure import figure
from senseapp.app.common.notices import complain
from senseapp.app.schedule.controls import take_target
from senseapp.app.schedule.settings import ScheduleSettings
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.metrics import METRICS, MetricChange
from senseapp.records.measurement import RunResult, change_in
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import Schedule, StrongestFound, ValidationResult
from senseapp.solve.curve_set import damage_metric
from senseapp.solve.time_budget import time_trade_off
from senseapp.solve.trade_off import TradeOffPoint, too_large, trade_off
from senseapp.views.charts.axes import PICK
from senseapp.views.charts.savings import trade_off_chart
from senseapp.views.frames.files import AS_THEY_ARE, AXES, figure_text, shown_figure
from senseapp.views.words.wording import caveat_of

_COLUMNS = ("source", "figure", "damage", "low", "high", "description")


def predicted_frame(curves: Iterable[tuple[str, Sequence[TradeOffPoint]]], metric: str) -> pd.DataFrame:
    """Return one row per point of each named curve, with the columns of :func:`measured_frame`."""
    rows = [
        _row(name, point.kind, point.figure, (point.damage,) * 3, metric) for name, points in curves for point in points
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def measured_frame(
    validations: Iterable[ValidationResult], found: StrongestFound | None, *, kind: str, metric: str
) -> pd.DataFrame:
    """Return one row per measurement in ``metric`` of a schedule whose savings of ``kind`` are known.

    Columns are ``source``, ``figure``, ``damage``, ``low``, ``high`` and ``description``.
    """
    measured: list[tuple[str, float | None, MetricChange | None]] = []
    for validation in validations:
        figure = validation.schedule.achieved.get(kind)
        measured.append(("Measured", figure, change_in(validation.changes, metric)))
        measured.append(
            (f"Measured after {validation.repair_words[0]}", figure, change_in(validation.repaired, metric))
        )
    if found is not None and found.schedule.budget is not None and found.schedule.budget.kind == kind:
        measured += [("Tried in a search", tried.figure, tried.change(metric)) for tried in found.tried]
    rows = [
        _row(name, kind, figure, (change.delta, change.ci_low, change.ci_high), metric)
        for name, figure, change in measured
        if figure is not None and change is not None
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _row(source: str, kind: str, figure: float, ends: tuple[float, float, float], metric: str) -> dict[str, Any]:
    view, (damage, low, high) = METRICS[metric], ends
    interval = f" ({view.interval_text(low, high)})" if high > low else ""
    return {
        "source": source,
        "figure": round(shown_figure(kind, figure), 4),
        "damage": view.factor * max(0.0, damage),
        "low": view.factor * max(0.0, low),
        "high": view.factor * max(0.0, high),
        "description": f"{source}, {figure_text(kind, figure)}: {view.change_inside} "
        f"{view.change_text(damage)}{interval}",
    }


_NAMES = {"optimal": "Least damage", "uniform": "Uniform", "gamma": "Proportional rule"}
# targets of a curve: each is a solved schedule; the best one bends, so it gets twice as many
_POINTS = {"optimal": 25, "uniform": 13, "gamma": 13}
_KEPT = 32  # curves of all sessions: three for each run and set of limits


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
    kind, metric = settings.kind, damage_metric(result)
    if settings.awaits_times:
        st.caption("The trade-off follows once the times of the layers are known.")
        return
    if large := too_large(result):
        st.caption(
            md(
                ":material/info: {} are too large for the trade-off here, and for the uniform schedule beside this "
                "one. Choose a goal above: one schedule at a time is solved.",
                large,
            )
        )
        return
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
        now=shown_figure(kind, _asked(settings) if now is None else now),
        x_title=AXES[kind],
        y_title=view.axis if view.higher_is_better else f"{view.label} ({view.change_unit})".removesuffix(" ()"),
        notable=view.factor * view.notable,
    )
    key = f"schedule.trade_off.{kind}.{run_id}"
    figure(
        "What does removing more cost?",
        chart,
        alt_text=f"Predicted {view.change_inside} against savings: {'; '.join(predicted['description'].iloc[::6])}",
        key=key,
        on_pick=lambda: _take(key, run_id, result, kind),
        reading="Lines are predicted from the layers alone; marks are whole schedules that were measured, with their "
        "95 % interval. Click a dot to take its schedule. The dashed line is where you are.",
        caveat=caveat_of(result),
        data=pd.concat([predicted, measured]) if len(measured) else predicted,
    )


def _take(key: str, run_id: str, result: RunResult, kind: str) -> None:
    picked = st.session_state[key]["selection"].get(PICK) or []
    if picked:
        figure = float(picked[0]["figure"])
        take_target(run_id, result, kind, figure if kind in AS_THEY_ARE else figure / 100)


def _asked(settings: ScheduleSettings) -> float:
    return settings.budget.target if settings.time is None else 1000 * settings.time.most_seconds


def _curves(
    run_id: str, result: RunResult, settings: ScheduleSettings, groups: tuple[CoupledGroup, ...]
) -> dict[str, tuple[TradeOffPoint, ...]]:
    """Return the curve of each method that this compression allows, the optimal one first."""
    limits = settings.limits
    asked = (
        *(run_id, len(result.measurements), settings.budget.kind, settings.gamma, len(groups)),
        *(limits.min_level, limits.max_level),
        settings.time and (settings.time.times.source, len(settings.time.times.times)),
        *(tuple(sorted(limits.layers.items())), tuple(sorted(limits.fixed.items()))),
    )
    methods = ["optimal", "uniform"] if settings.time is None else ["optimal"]
    if settings.time is None and result.compression.scale.any_between:
        methods.append("gamma")
    return {_NAMES[method]: _curve(asked, method, result, settings, groups) for method in methods}


@st.cache_data(show_spinner=False, max_entries=_KEPT)
def _curve(
    asked: tuple[object, ...],
    method: str,
    _result: RunResult,
    _settings: ScheduleSettings,
    _groups: tuple[CoupledGroup, ...],
) -> tuple[TradeOffPoint, ...]:
    """Return one curve; ``asked`` names everything that decides it."""
    kind = _settings.budget.kind
    if _settings.time is not None:
        return time_trade_off(_result, _settings.time.times, limits=_settings.limits)
    try:
        return trade_off(
            _result,
            kind,
            _POINTS[method],
            method=method,
            limits=_settings.limits,
            gamma=_settings.gamma,
            step=0.1 if kind == "bits" else 0.01,
            groups=_groups,
        )
    except SenseError:
        if method == "optimal":
            raise
        return ()  # 2:4 sparsity has no classic rule: the other lines say all there is
