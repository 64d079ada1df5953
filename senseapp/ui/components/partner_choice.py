"""Another run of the same model, whose compression is chosen together with this run's."""

from __future__ import annotations

import streamlit as st

from senseapp.errors import NotFound
from senseapp.results import RunRecord, SensitivityResult
from senseapp.ui import backend
from senseapp.ui.components.run_guard import run_line

_NONE = ""


def choose_partner(run_id: str) -> SensitivityResult | None:
    """Offer to combine sparsity and quantization where both were measured; return the other run's results, or None."""
    partners = {record.run_id: record for record in backend.service().schedules.partners(run_id)}
    if not partners:
        return None
    chosen = st.selectbox(
        "Combine with",
        [_NONE, *partners],
        format_func=lambda name: _words(partners[name]) if name else "nothing: this compression alone",
        key=f"schedule.partner.{run_id}",
        help="Each layer gets zeros, fewer bits, or both, whichever does the least damage for the bytes it saves.",
        persist_state="session",
    )
    if chosen not in partners:
        return None
    try:
        return backend.result_of(chosen)
    except NotFound:  # deleted a moment ago in another window
        return None


def _words(record: RunRecord) -> str:
    return f"{record.title}: {run_line(record)}"
