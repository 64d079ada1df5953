"""Another run of the same model, whose compression is chosen together with this run's."""

from __future__ import annotations

import streamlit as st

from senseapp.errors import NotFound
from senseapp.results import RunRecord, RunState, SensitivityResult
from senseapp.ui import backend
from senseapp.ui.components.run_guard import run_line

__all__ = ["choose_partner", "partners_of"]

_OTHER = {"sparsity": "quantization", "quantization": "sparsity"}
_NONE = ""


def partners_of(record: RunRecord) -> list[RunRecord]:
    """Return this person's finished runs of the same model whose compression goes together with ``record``'s."""
    wanted = _OTHER.get(record.spec.sensitivity.compression.kind)
    return [
        other
        for other in backend.service().runs()
        if other.state is RunState.DONE
        and other.spec.model == record.spec.model
        and other.spec.sensitivity.compression.kind == wanted
        and other.spec.model.library != "imported"
    ]


def choose_partner(run_id: str) -> SensitivityResult | None:
    """Offer to combine sparsity and quantization where both were measured; return the other run's results, or None."""
    partners = {record.run_id: record for record in partners_of(backend.service().run(run_id))}
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
