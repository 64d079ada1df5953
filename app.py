"""The app: page settings and navigation, nothing else."""

from pathlib import Path

import streamlit as st

from senseapp.app.common.account import admit, sidebar

ASSETS = Path(__file__).parent / "assets"

# A picture of our own: with a Material icon here, browsers would fetch it from the internet.
st.set_page_config(page_title="senseapp", page_icon=str(ASSETS / "icon.png"), layout="wide", initial_sidebar_state=200)
st.html(ASSETS / "style.css")
menu = {
    "Analyze": st.Page("pages/analyze.py", title="Analyze", icon=":material/tune:", default=True),
    "Results": st.Page("pages/results.py", title="Results", icon=":material/bar_chart:"),
    "Schedule": st.Page("pages/targets.py", title="Schedule", icon=":material/rule_settings:", url_path="schedule"),
    "Runs": st.Page("pages/runs.py", title="Runs", icon=":material/list:"),
    "Check a file": st.Page("pages/check.py", title="Check a file", icon=":material/fact_check:"),
}
foot = {
    "Guide": st.Page("pages/guide.py", title="Guide", icon=":material/menu_book:"),
    "System": st.Page("pages/system.py", title="System", icon=":material/monitor_heart:"),
}
compare = st.Page("pages/compare.py", title="Compare", icon=":material/compare_arrows:")
present = st.Page("pages/present.py", title="Present", icon=":material/slideshow:")
# Streamlit's own menu drops the run from the address, so the sidebar has links of ours.
page = st.navigation([*menu.values(), *foot.values(), compare, present], position="hidden")
if page.url_path != "present":  # which has the whole width
    sidebar(menu, foot, shown=page.url_path, mark=ASSETS / "mark.svg", small_mark=ASSETS / "icon.png")
admit(page.url_path)
page.run()
