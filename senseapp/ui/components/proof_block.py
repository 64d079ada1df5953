"""Proof of a schedule: measure the compressed model in the background, and show it beside the prediction."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from senseapp.errors import NotFound, SenseError
from senseapp.results import JobSnapshot, Schedule, SensitivityResult
from senseapp.results.model_files import CHECKPOINT, model_file, small_form
from senseapp.service.verification import Verification
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.components.job_line import job_line
from senseapp.ui.components.notices import complain
from senseapp.ui.components.proof_figures import headline_of, proof_figures
from senseapp.ui.components.run_guard import may_start

_POLL_SECONDS = 1.0
_STEM = "compressed"


def proof_block(
    schedule: Schedule, result: SensitivityResult, run_id: str, *, partner: SensitivityResult | None = None
) -> None:
    """Show what was measured of ``schedule``, how far its proof is, or the button that starts one.

    ``partner`` holds the results of the second run, where the schedule was made from two.
    """
    with st.container(border=True):
        st.markdown("## Proof by measurement")
        repair = st.toggle(
            "Repair without training",
            value=True,
            key=f"schedule.repair.{run_id}",
            help="After compression, the mean and spread per channel of what leaves each BatchNorm, and each "
            "compressed layer with a bias, are matched to the uncompressed network's on the same unlabelled images "
            "(at most 256). It is kept only where it measures better on images that it was not fitted to.",
            persist_state="session",
        )
        other = partner.spec.sensitivity.compression if partner is not None else None
        proof = Verification(run_id=run_id, schedule=schedule, repair=repair, other=other)
        try:
            validation, snapshot = backend.service().work.outcome(proof), backend.service().work.progress(proof)
        except SenseError as error:
            complain(str(error))
            return
        if validation is not None:
            proof_figures(validation, result)
            _compressed_model(proof)
        elif snapshot is not None and not snapshot.state.finished:
            st.fragment(_progress, run_every=_POLL_SECONDS)(proof)
        else:
            _start(proof, snapshot)


def verified(schedule: Schedule, run_id: str, *, partner: SensitivityResult | None = None) -> str:
    """Return what was measured of ``schedule`` in its own metric, as it is delivered; empty before."""
    other = partner.spec.sensitivity.compression if partner is not None else None
    for repair in (True, False):
        with suppress(SenseError):  # the block of the proof says what is wrong with it
            proof = Verification(run_id=run_id, schedule=schedule, repair=repair, other=other)
            outcome = backend.service().work.outcome(proof)
            if outcome is not None:
                return headline_of(outcome)
    return ""


def _start(proof: Verification, snapshot: JobSnapshot | None) -> None:
    if snapshot is not None and snapshot.error:
        complain(snapshot.error)
    if not may_start(proof.run_id, "a proof of this schedule"):
        return
    st.markdown("A prediction adds up what layers lose alone. Measure what they lose together before you rely on it.")
    if st.button("Verify", key=f"schedule.verify.{proof.run_id}", icon=":material/science:"):
        try:
            backend.service().work.start(proof)
        except SenseError as error:
            complain(str(error))
        else:
            st.rerun()


def _progress(proof: Verification) -> None:
    snapshot = backend.service().work.progress(proof)
    if snapshot is None or snapshot.state.finished:
        st.rerun()
    job_line(snapshot)
    st.button("Cancel", key=f"schedule.stop.{proof.run_id}", on_click=_cancel, args=(proof,))


def _cancel(proof: Verification) -> None:
    with suppress(NotFound):  # deleted meanwhile; the page says so
        backend.service().work.cancel(proof)


def _compressed_model(proof: Verification) -> None:
    try:
        files = backend.service().work.compressed_model(proof)
    except SenseError as error:
        complain(str(error))
        return
    row = st.container(horizontal=True)
    for path in files:
        form = model_file(path.name)
        row.download_button(
            f"Compressed model: {form.title} ({fmt.bytes_size(path.stat().st_size)})",
            path.read_bytes,
            file_name=_STEM + form.suffix,
            key=f"schedule.model.{form.suffix}.{proof.run_id}",
            icon=":material/download:",
            on_click="ignore",
        )
    for small in (small for path in files if (small := small_form(path.name))):
        st.caption(
            f"**{_STEM}{CHECKPOINT.suffix}** holds plain float32 weights, as large as before, that the same "
            f"architecture loads. **{_STEM}{small.suffix}** holds the same weights and is read by these lines:"
        )
        st.code(small.reader(_STEM + small.suffix), language="python", wrap_lines=True)
