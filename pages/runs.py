"""Runs: everything measured so far."""

import streamlit as st

from senseapp.ui import backend
from senseapp.ui.components.import_run import import_run
from senseapp.ui.components.import_table import import_table
from senseapp.ui.components.notices import empty_state, errors_here
from senseapp.ui.components.run_list import run_list
from senseapp.ui.components.run_search import disk_line

st.title("Runs", anchor=False)
import_table()
import_run()
with errors_here():
    records = backend.service().runs()
    if records:
        st.caption(disk_line(backend.service().disk_use(), len(records)))
        run_list(records)
    else:
        empty_state(
            "No run yet",
            "Every run is kept here. Start one: the demo is filled in and takes less than a minute.",
            button="Go to Analyze",
            page="pages/analyze.py",
        )
