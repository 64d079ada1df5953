"""Leaderboard: finished runs side by side, the most compressible model first."""

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.notices import empty_state, errors_here, wait_for
from senseapp.app.common.tables import leaderboard_table

st.title("Leaderboard", anchor=False)
with errors_here():
    rows = backend.leaderboard()
    if rows is None:
        wait_for(backend.leaderboard, "Working out how small each model can be made")
    elif rows:
        leaderboard_table(rows, {record.run_id: record for record in backend.service().runs()})
    else:
        empty_state(
            "No finished run yet",
            "Each finished run gets a row here. Start one: the demo is filled in and takes less than a minute.",
        )
