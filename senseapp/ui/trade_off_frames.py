"""Data frames of the trade-off, in display units: what is predicted over the whole range, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from senseapp.compressions import BudgetKind
from senseapp.metrics import METRICS, Metric
from senseapp.results import MetricChange, StrongestFound, ValidationResult
from senseapp.results.measurement import change_in
from senseapp.schedule import TradeOffPoint

_COLUMNS = ("source", "figure", "damage", "low", "high", "description")


def shown_figure(kind: str, figure: float) -> float:
    """Return a figure in the unit of its axis: percent removed, or average bits."""
    return figure if kind == "bits" else 100 * figure


def figure_text(kind: str, figure: float) -> str:
    """Return a figure as people say it: ``62.5 % of the MACs saved``, ``4.2 bits on average``."""
    words = {
        "params": "of the weights removed",
        "bytes": "of the bytes saved if stored compactly",
        "macs": "of the MACs saved",
    }
    return f"{figure:.2f} bits on average" if kind == "bits" else f"{100 * figure:.1f} % {words[kind]}"


def predicted_frame(curves: Iterable[tuple[str, Sequence[TradeOffPoint]]], metric: str) -> pd.DataFrame:
    """Return one row per point of each named curve."""
    view = METRICS[metric]
    rows = [
        _row(name, point.kind, point.figure, point.damage, point.damage, point.damage, view)
        for name, points in curves
        for point in points
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def measured_frame(
    validations: Iterable[ValidationResult], found: StrongestFound | None, *, kind: BudgetKind, metric: str
) -> pd.DataFrame:
    """Return one row per measurement in ``metric`` of a schedule whose savings of ``kind`` are known."""
    rows = [
        *(row for validation in validations for row in _proven(validation, kind, metric)),
        *(_tried(found, kind, metric) if found is not None else ()),
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _proven(validation: ValidationResult, kind: BudgetKind, metric: str) -> Iterator[dict[str, Any]]:
    figure = validation.schedule.achieved.get(kind)
    if figure is None:
        return
    for name, changes in (("Measured", validation.changes), ("Measured after repair", validation.repaired)):
        if change := change_in(changes, metric):
            yield _measured(name, kind, figure, change)


def _tried(found: StrongestFound, kind: BudgetKind, metric: str) -> Iterator[dict[str, Any]]:
    budget = found.schedule.budget
    if budget is None or budget.kind != kind:
        return
    for tried in found.tried:
        change = tried.change(metric)
        if change is not None:
            yield _measured("Tried in a search", kind, tried.figure, change)


def _measured(name: str, kind: BudgetKind, figure: float, change: MetricChange) -> dict[str, Any]:
    return _row(name, kind, figure, change.delta, change.ci_low, change.ci_high, METRICS[change.metric])


def _row(
    source: str, kind: BudgetKind, figure: float, damage: float, low: float, high: float, view: Metric
) -> dict[str, Any]:
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
