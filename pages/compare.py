"""Compare: runs beside each other, or one run's estimate beside its measurement."""

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.notices import empty_state, errors_here
from senseapp.app.common.tables import settings_table
from senseapp.app.compare.sides import choose_metric, choose_runs, choose_sides
from senseapp.app.compare.view import comparison_view, files_view
from senseapp.records.comparison import are_one_network, compare

st.title("Compare", anchor=False)
st.markdown("Two models, two compressions, two sets of images; or the estimate of one run beside its measurement.")
with errors_here():
    left, right = st.columns([3, 1], vertical_alignment="top")
    with left:
        records = choose_runs()
    if not records and not backend.service().runs():
        empty_state("There is nothing to compare.")
        st.stop()
    if records:
        files_view(records)
    sides = choose_sides(records)
    with right:
        metric = choose_metric(sides) if sides else None
    if metric is not None:
        if are_one_network(sides):
            comparison_view(compare(sides, metric.name))
        else:
            st.info(
                "These runs are of different networks, so their layers are not compared: layers of the same name are "
                "not the same.",
                icon=":material/info:",
            )
        settings_table(sides)
