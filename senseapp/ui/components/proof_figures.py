"""What the proof of a schedule measured: beside the prediction, after repair, and a uniform schedule of equal cost."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from senseapp.results import MetricChange, SensitivityResult, ValidationResult
from senseapp.ui.components.figures_row import figures_row
from senseapp.ui.proof_wording import size_changes
from senseapp.ui.vocabulary import METRICS

__all__ = ["headline_of", "proof_figures"]


def proof_figures(validation: ValidationResult, result: SensitivityResult) -> None:
    """Show predicted and measured damage, the metric itself, sizes before and after, and every note."""
    name = validation.schedule.metric
    rows = {
        "compressed": validation.changes,
        "repaired": validation.repaired,
        "uniform": validation.uniform,
        "uniform, repaired": validation.uniform_repaired,
    }
    figures = {f"Predicted {METRICS[name].label}": METRICS[name].change(validation.predicted)}
    figures |= _readings(name, {"measured": validation.changes, "repaired": validation.repaired})
    figures_row(figures | _gain(name, validation), key="schedule_proof_predicted")
    own = _of(result.metric, validation.changes)
    if own is not None and result.metric != name:
        before = {f"{METRICS[result.metric].label}, before": METRICS[result.metric].reading(own.baseline)}
        shown = before | _readings(result.metric, rows, values=True) | _gain(result.metric, validation)
        figures_row(shown, key="schedule_proof_metric")
    figures_row(size_changes(validation), key="schedule_proof_sizes")
    for note in validation.notes:
        st.caption(f":material/info: {note}")


def headline_of(validation: ValidationResult) -> str:
    """Return the measured damage in the schedule's own metric, after repair where there was one."""
    name = validation.schedule.metric
    change = _of(name, validation.repaired or validation.changes)
    if change is None:
        return ""
    repaired = " after repair" if validation.repaired else ""
    return f"{METRICS[name].change(change.delta)}{repaired}"


def _readings(name: str, rows: dict[str, tuple[MetricChange, ...]], *, values: bool = False) -> dict[str, str]:
    """Return each change of ``name`` with its interval, after the metric itself on request."""
    view, found = METRICS[name], {}
    for label, changes in rows.items():
        change = _of(name, changes)
        if change is not None:
            text = f"{view.change(change.delta)} ({view.interval(change.ci_low, change.ci_high)})"
            found[label.capitalize()] = f"{view.reading(change.value)}, {text}" if values else text
    return found


def _gain(name: str, validation: ValidationResult) -> dict[str, str]:
    """Return what repair alone changed."""
    before, after = _of(name, validation.changes), _of(name, validation.repaired)
    if before is None or after is None:
        return {}
    return {"Repair alone": METRICS[name].change(after.delta - before.delta)}


def _of(metric: str, changes: Sequence[MetricChange]) -> MetricChange | None:
    return next((change for change in changes if change.metric == metric), None)
