"""In what two runs or more differ, apart from their figures."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from senseapp.results.comparison import Side
from senseapp.ui.comparison_frames import letter
from senseapp.ui.settings import differing_settings
from senseapp.ui.tables import show_table


def settings_table(sides: Sequence[Side]) -> None:
    """Show the settings that differ; nothing for the two parts of one run."""
    differing = differing_settings(sides)
    if not differing:
        return
    st.markdown("## In what else do the runs differ?")
    letters = [letter(index) for index in range(len(sides))]
    rows = pd.DataFrame([[label, *values] for label, values in differing.items()], columns=["setting", *letters])
    columns = {"setting": st.column_config.TextColumn("Setting")}
    columns |= {name: st.column_config.TextColumn(f"In {name}", width="large") for name in letters}
    show_table(rows, columns, alt_text="Settings in which the runs differ", key="compare.settings")
