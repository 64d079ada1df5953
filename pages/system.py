"""System: what the server runs on, how busy it is, and how full."""

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.account import system_panel
from senseapp.app.common.notices import complain

with st.container(horizontal_alignment="center"), st.container(width=960):
    st.title("System", anchor=False)
    st.markdown("What this server runs on and how busy it is: of use when something is slow or goes wrong.")
    if backend.visitor().is_operator:
        system_panel()
    else:
        complain("Only the operators of this server see this page. Ask whoever runs it.")
