"""What the proof of a schedule measured: beside the prediction, after repair, and a uniform schedule of equal cost."""

from __future__ import annotations

import streamlit as st

from senseapp.metrics import METRICS
from senseapp.results import MetricChange, SensitivityResult, ValidationResult
from senseapp.results.measurement import change_in
from senseapp.ui.components.figures_row import figures_row
from senseapp.ui.proof_wording import delivery, size_changes


def proof_figures(validation: ValidationResult, result: SensitivityResult) -> None:
    """Show predicted and measured damage, the metric itself, sizes before and after, and every note."""
    name = validation.schedule.metric
    rows = {
        "compressed": validation.changes,
        "repaired": validation.repaired,
        "uniform": validation.uniform,
        "uniform, repaired": validation.uniform_repaired,
    }
    figures = {f"Predicted {METRICS[name].change_inside}": METRICS[name].change_text(validation.predicted)}
    figures |= _readings(name, {"measured": validation.changes, "repaired": validation.repaired})
    figures_row(figures | _gain(name, validation), key="schedule_proof_predicted")
    for metric in _other_metrics(name, result, validation)[:1]:
        own = change_in(validation.changes, metric)
        before = {f"{METRICS[metric].label}, before": METRICS[metric].value_text(own.baseline)} if own else {}
        shown = before | _readings(metric, rows, values=True) | _gain(metric, validation)
        figures_row(shown, key="schedule_proof_metric")
    if delivered := delivery(validation):
        st.markdown(delivered)
    figures_row(size_changes(validation), key="schedule_proof_sizes")
    for note in validation.notes:
        st.caption(f":material/info: {note}")


def _other_metrics(name: str, result: SensitivityResult, validation: ValidationResult) -> list[str]:
    """Return the metrics besides the schedule's own that people ask for, the first one first."""
    asked = dict.fromkeys((result.metric, *(metric.name for metric in METRICS.values() if metric.primary)))
    return [metric for metric in asked if metric != name and change_in(validation.changes, metric) is not None]


def headline_of(validation: ValidationResult) -> str:
    """Return the measured damage in the schedule's own metric, of the model that was kept."""
    name = validation.schedule.metric
    change = change_in(validation.kept_changes, name)
    if change is None:
        return ""
    repaired = " after repair" if validation.keeps_repair else ""
    return f"{METRICS[name].change_text(change.delta)}{repaired}"


def _readings(name: str, rows: dict[str, tuple[MetricChange, ...]], *, values: bool = False) -> dict[str, str]:
    """Return each change of ``name`` with its interval, after the metric itself on request."""
    view, found = METRICS[name], {}
    for label, changes in rows.items():
        change = change_in(changes, name)
        if change is not None:
            text = f"{view.change_text(change.delta)} ({view.interval_text(change.ci_low, change.ci_high)})"
            found[label.capitalize()] = f"{view.value_text(change.value)}, loses {text}" if values else text
    return found


def _gain(name: str, validation: ValidationResult) -> dict[str, str]:
    """Return what repair alone changed."""
    before, after = change_in(validation.changes, name), change_in(validation.repaired, name)
    if before is None or after is None:
        return {}
    return {"Repair alone": METRICS[name].change_text(after.delta - before.delta)}
