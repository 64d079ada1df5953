"""Proof of a schedule: measure the compressed model in the background, and show it beside the prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import streamlit as st

from senseapp.errors import NotFound, SenseError
from senseapp.results import JobSnapshot, MetricChange, Schedule, SensitivityResult, ValidationResult
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.components.figures_row import figures_row
from senseapp.ui.components.notices import complain
from senseapp.ui.vocabulary import METRICS

__all__ = ["proof_block"]

_POLL_SECONDS = 1.0
_FORMS = {".safetensors": "weights", ".pt2": "network as .pt2", ".onnx": "network as ONNX"}


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


_SIZES: dict[str, tuple[str, Callable[[float], str]]] = {
    "bytes": ("Size", fmt.bytes_size),
    "zeros": ("Zeros", fmt.count),
    "params": ("Parameters", fmt.count),
    "macs": ("MACs", fmt.count),
    "latency_seconds": ("Time of one image", _milliseconds),
}


def proof_block(schedule: Schedule, result: SensitivityResult, run_id: str) -> None:
    """Show what was measured of ``schedule``, how far its proof is, or the button that starts one."""
    with st.container(border=True):
        st.markdown("##### Proof by measurement")
        repair = st.toggle(
            "Repair without training",
            value=True,
            key=f"schedule.repair.{run_id}",
            help="Fits BatchNorm statistics, or without BatchNorm the layers' biases and scales, to unlabelled images "
            "after compression. Its gain is shown apart.",
            persist_state="session",
        )
        try:
            validation = backend.service().validation(run_id, schedule, repair=repair)
            snapshot = backend.service().verification(run_id, schedule, repair=repair)
        except SenseError as error:
            complain(str(error))
            return
        if validation is not None:
            _measured(validation, result)
            _compressed_model(run_id, schedule, repair)
        elif snapshot is not None and not snapshot.state.finished:
            st.fragment(_progress, run_every=_POLL_SECONDS)(run_id, schedule, repair)
        else:
            _start(run_id, schedule, repair, snapshot)


def _start(run_id: str, schedule: Schedule, repair: bool, snapshot: JobSnapshot | None) -> None:
    if snapshot is not None and snapshot.error:
        complain(snapshot.error)
    st.markdown("A prediction adds up what layers lose alone. Measure what they lose together before you rely on it.")
    if st.button("Verify", key=f"schedule.verify.{run_id}", icon=":material/science:"):
        try:
            backend.service().verify(run_id, schedule, repair=repair)
        except SenseError as error:
            complain(str(error))
        else:
            st.rerun()


def _progress(run_id: str, schedule: Schedule, repair: bool) -> None:
    snapshot = backend.service().verification(run_id, schedule, repair=repair)
    if snapshot is None or snapshot.state.finished:
        st.rerun()
    waiting = f"Place {snapshot.queue_place} in the queue" if snapshot.queue_place else snapshot.phase or "Starting"
    st.markdown(f":material/hourglass: {waiting} · {fmt.clock(snapshot.elapsed_seconds)} elapsed")
    st.button("Cancel", key=f"schedule.stop.{run_id}", on_click=_cancel, args=(run_id, schedule, repair))


def _cancel(run_id: str, schedule: Schedule, repair: bool) -> None:
    with suppress(NotFound):  # deleted meanwhile; the page says so
        backend.service().cancel_verification(run_id, schedule, repair=repair)


def _measured(validation: ValidationResult, result: SensitivityResult) -> None:
    name = validation.schedule.metric
    rows = {
        "compressed": validation.changes,
        "repaired": validation.repaired,
        "uniform": validation.uniform,
        "uniform, repaired": validation.uniform_repaired,
    }
    figures = {f"Predicted {METRICS[name].label}": METRICS[name].change(validation.predicted)}
    figures |= _readings(name, {"measured": validation.changes, "repaired": validation.repaired})
    figures_row(figures, key="schedule_proof_predicted")
    own = _of(result.metric, validation.changes)
    if own is not None and result.metric != name:
        before = {f"{METRICS[result.metric].label}, before": METRICS[result.metric].reading(own.baseline)}
        figures_row(before | _readings(result.metric, rows, values=True), key="schedule_proof_metric")
    figures_row(_sizes(validation), key="schedule_proof_sizes")
    for note in validation.notes:
        st.caption(f":material/info: {note}")


def _readings(name: str, rows: dict[str, tuple[MetricChange, ...]], *, values: bool = False) -> dict[str, str]:
    """Return each change of ``name`` with its interval, after the metric itself on request."""
    view, found = METRICS[name], {}
    for label, changes in rows.items():
        change = _of(name, changes)
        if change is not None:
            text = f"{view.change(change.delta)} ({view.interval(change.ci_low, change.ci_high)})"
            found[label.capitalize()] = f"{view.reading(change.value)}, {text}" if values else text
    return found


def _sizes(validation: ValidationResult) -> dict[str, str]:
    found = {}
    for kind, (title, write) in _SIZES.items():
        before, after = validation.sizes.get(kind, (0.0, 0.0))
        if before or after:
            found[title] = f"{write(before)} → {write(after)}"
    return found


def _of(metric: str, changes: Sequence[MetricChange]) -> MetricChange | None:
    return next((change for change in changes if change.metric == metric), None)


def _compressed_model(run_id: str, schedule: Schedule, repair: bool) -> None:
    try:
        files = backend.service().compressed_model(run_id, schedule, repair=repair)
    except SenseError as error:
        complain(str(error))
        return
    row = st.container(horizontal=True)
    for path in files:
        row.download_button(
            f"Compressed model: {_FORMS[path.suffix]}",
            path.read_bytes,
            file_name=f"compressed{path.suffix}",
            key=f"schedule.model.{path.suffix}.{run_id}",
            icon=":material/download:",
            on_click="ignore",
        )
