"""Import of run files from other servers and of sensitivity tables from other tools."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from streamlit.typing import UploadedFile

from senseapp.app.analyze.library import search_architecture
from senseapp.app.common import backend
from senseapp.app.common.notices import complain
from senseapp.app.common.state import go_to
from senseapp.app.common.uploads import drop_upload, expect_files, read_upload, upload_path
from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.records.spec import ModelSpec
from senseapp.server.quotas import UploadLimits


def import_button() -> None:
    """Show the button behind which runs and tables are imported."""
    with st.popover("Import", icon=":material/upload_file:", width="content"):
        run, table = st.tabs(["Run from another server", "Sensitivity CSV"])
        with run:
            import_run()
        with table:
            import_table()


def import_run() -> None:
    """Show the uploader; a run file that is sound becomes a finished run, and its results open."""
    st.markdown(
        md(
            "The file that **Download run** wrote. What was measured comes along, and proofs with their compressed "
            "models; the network and the images do not."
        )
    )
    expect_files()
    uploaded = st.file_uploader(
        "Run file", type=["zip"], key="runs.take.file", max_upload_size=UploadLimits.configured().file_mb
    )
    pressed = st.button("Import run", key="runs.take", disabled=uploaded is None, type="primary")
    if uploaded is not None:
        _try("runs.take.refused", uploaded.file_id, pressed, lambda: _import(uploaded))


def _try(key: str, file_id: str, pressed: bool, act: Callable[[], None]) -> None:
    """Import a file if its button was ``pressed``, and say why it was refused until another one is chosen.

    The list of runs runs the page again once more is known of it, which would take the sentence away.
    """
    if pressed:
        st.session_state[key] = "", ""
        try:
            act()
        except SenseError as error:
            st.session_state[key] = file_id, str(error)
    refused_file, reason = st.session_state.get(key, ("", ""))
    if reason and refused_file == file_id:
        complain(reason)


def _import(uploaded: UploadedFile) -> None:
    run_id = backend.service().import_run(upload_path(uploaded))
    drop_upload(uploaded)
    go_to(run_id)


_UNITS: dict[SparsityGranularity, str] = {"weight": "Single weights", "filter": "Whole filters"}
_MOST_MEGABYTES = 20  # the limit of what reads it, see senseapp.store.distiller


def import_table() -> None:
    """Show the uploader; a table that can be read becomes a finished run, and its results open."""
    st.markdown(
        md(
            "A table that Distiller wrote, with the columns `parameter,sparsity,top1,top5,loss`: sparsity as a "
            "fraction, top1 and top5 in percent, and for each parameter a row at sparsity 0."
        )
    )
    expect_files()
    uploaded = st.file_uploader(
        "Sensitivity CSV", type=["csv"], key="runs.import.file", max_upload_size=_MOST_MEGABYTES
    )
    unit = st.segmented_control(
        "What was set to zero",
        list(_UNITS),
        default="weight",
        required=True,
        format_func=_UNITS.__getitem__,
        key="runs.import.granularity",
        help="The file does not say it.",
    )
    model, model_missing = _choose_model()
    ready = uploaded is not None and not model_missing
    pressed = st.button("Import", key="runs.import", disabled=not ready, type="primary")

    if uploaded is not None:
        _try("runs.import.refused", uploaded.file_id, pressed, lambda: _import_rows(uploaded, unit, model))


def _choose_model() -> tuple[ModelSpec | None, bool]:
    """Offer to name the model; return it, and whether one is still to be picked."""
    named = st.toggle(
        "Say which model was measured",
        key="runs.import.named",
        help="Optional: adds the types and sizes of its layers, and checks the names. No weights are fetched.",
    )
    entry = search_architecture(default="", key="runs.import.model") if named else None
    model = ModelSpec(library=entry.library, name=entry.name) if entry else None
    return model, named and entry is None


def _import_rows(uploaded: UploadedFile, granularity: SparsityGranularity, model: ModelSpec | None) -> None:
    title = uploaded.name.rsplit(".", 1)[0] or "Imported"
    with st.spinner("Reading the table"):
        content = read_upload(uploaded, most_megabytes=_MOST_MEGABYTES)
        run_id = backend.service().import_csv(title, content, granularity=granularity, model=model)
    go_to(run_id)
