"""Take in a run that another senseapp wrote as one file."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit.typing import UploadedFile

from senseapp.service import UploadLimits
from senseapp.ui import backend
from senseapp.ui.components.notices import errors_here
from senseapp.ui.state import RUN_PARAMETER, remember_run
from senseapp.ui.uploads import expect_files, store_upload


def import_run() -> None:
    """Show the uploader; a run file that is sound becomes a finished run, and its results open."""
    with st.expander("Import a run from another server", icon=":material/move_to_inbox:"):
        st.markdown(
            "The file that **Download run** wrote. What was measured comes along, and proofs with their compressed "
            "models; the network and the images do not."
        )
        expect_files()
        uploaded = st.file_uploader(
            "Run file", type=["zip"], key="runs.take.file", max_upload_size=UploadLimits.configured().file_mb
        )
        if st.button("Import run", key="runs.take", disabled=uploaded is None, type="primary") and uploaded is not None:
            with errors_here():
                _import(uploaded)


def _import(uploaded: UploadedFile) -> None:
    owned = backend.service()
    path: Path = store_upload(uploaded)
    try:
        with path.open("rb") as stream:
            run_id = owned.import_run(stream)
    finally:
        owned.discard_upload(path)
    remember_run(run_id)
    st.switch_page("pages/results.py", query_params={RUN_PARAMETER: run_id})
