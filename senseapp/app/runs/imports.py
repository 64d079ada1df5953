"""Import of run files from other servers and of sensitivity tables from other tools."""

from collections.abc import Callable

import streamlit as st
from streamlit.typing import UploadedFile

from senseapp.app.analyze.checkpoint import search_architecture
from senseapp.app.common import backend
from senseapp.app.common.notices import complain
from senseapp.app.common.state import go_to
from senseapp.app.common.uploads import drop_upload, expect_files, read_upload, upload_path
from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.records.spec import ModelSpec
from senseapp.server.settings import ServerSettings


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
        "Run file", type=["zip"], key="runs.take.file", max_upload_size=ServerSettings.configured().upload_mb
    )
    pressed = st.button("Import run", key="runs.take", disabled=uploaded is None, type="primary")
    if uploaded is not None:
        _try("runs.take.refused", uploaded, pressed, lambda: backend.service().import_run(upload_path(uploaded)))


def _try(key: str, uploaded: UploadedFile, pressed: bool, take: Callable[[], str]) -> None:
    """Open the run that a file becomes if its button was ``pressed``; say why not until another file is chosen.

    The list of runs runs the page again once more is known of it, which would take the sentence away.
    """
    if pressed:
        st.session_state[key] = "", ""
        try:
            with st.spinner("Reading the file"):
                run_id = take()
            drop_upload(uploaded)
            go_to(run_id)
        except SenseError as error:
            st.session_state[key] = uploaded.file_id, str(error)
    refused_file, reason = st.session_state.get(key, ("", ""))
    if reason and refused_file == uploaded.file_id:
        complain(reason)


_UNITS: dict[SparsityGranularity, str] = {"weight": "Single weights", "filter": "Whole filters"}
_MOST_MEGABYTES = 20  # the limit of what reads it, see senseapp.store.distiller


def import_table() -> None:
    """Show the uploader; a table that can be read becomes a finished run, and its results open."""
    st.markdown(
        md(
            "A table of sensitivities with the columns `parameter,sparsity,top1,top5,loss`: sparsity as a "
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
    named = st.toggle(
        "Say which model was measured",
        key="runs.import.named",
        help="Optional: adds the types and sizes of its layers, and checks the names. No weights are fetched.",
    )
    entry = search_architecture(default="", key="runs.import.model") if named else None
    model = ModelSpec(library=entry.library, name=entry.name) if entry else None
    is_ready = uploaded is not None and not (named and entry is None)
    pressed = st.button("Import", key="runs.import", disabled=not is_ready, type="primary")
    if uploaded is None:
        return

    def import_rows() -> str:
        title = uploaded.name.rsplit(".", 1)[0] or "Imported"
        content = read_upload(uploaded, most_megabytes=_MOST_MEGABYTES)
        return backend.service().import_csv(title, content, granularity=unit, model=model)

    _try("runs.import.refused", uploaded, pressed, import_rows)
