"""Runs: everything measured so far."""

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.account import no_login_line
from senseapp.app.common.notices import empty_state, errors_here
from senseapp.app.runs.imports import import_button
from senseapp.app.runs.list import disk_line, run_list, undo_deletions

with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
    st.title("Runs", anchor=False)
    import_button()
with errors_here():
    undo_deletions()
    records = backend.service().runs()
    if records:
        st.caption(disk_line(backend.service().disk_use(), len(records)))
        no_login_line()
        run_list(records)
    else:
        empty_state("Every run is kept here.")
