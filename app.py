"""The app: page settings and navigation, nothing else."""

from pathlib import Path

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.account import admit

ASSETS = Path(__file__).parent / "assets"

# A picture of our own: with a Material icon here, browsers would fetch it from the internet.
st.set_page_config(page_title="senseapp", page_icon=str(ASSETS / "icon.png"), layout="wide")
st.html(ASSETS / "style.css")
page = st.navigation(
    [
        st.Page("pages/analyze.py", title="Analyze", icon=":material/tune:", default=True),
        st.Page("pages/run.py", title="Run", icon=":material/play_circle:"),
        st.Page("pages/results.py", title="Results", icon=":material/bar_chart:"),
        st.Page("pages/targets.py", title="Schedule", icon=":material/rule_settings:", url_path="schedule"),
        st.Page("pages/compare.py", title="Compare", icon=":material/compare_arrows:"),
        st.Page("pages/runs.py", title="Runs", icon=":material/list:"),
        st.Page("pages/leaderboard.py", title="Leaderboard", icon=":material/leaderboard:"),
        st.Page("pages/guide.py", title="Guide", icon=":material/menu_book:"),
        st.Page("pages/system.py", title="System", icon=":material/monitor_heart:"),
    ]
)
admit(page.url_path)
backend.warm_up()
page.run()
