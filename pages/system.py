"""System: what the server runs on, how busy it is, and how full."""

import streamlit as st

from senseapp.app.common.account import system_panel

with st.container(horizontal_alignment="center"), st.container(width=960):
    st.title("System", anchor=False)
    st.markdown("What this server runs on and how busy it is: of use when something is slow or goes wrong.")
    system_panel()
