"""The table of finished runs, and what its headline figure means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from senseapp.app.common.tables import show_table
from senseapp.app.frames.comparison import leaderboard_frame
from senseapp.records.jobs import RunRecord
from senseapp.runs.leaderboard import LeaderboardRow

_EXPLAINED = (
    "One row per finished run, the most compressible first; click a column's head to sort. **Removable** is the share "
    "of the weights' bytes, if zeros are stored sparse and weights at their bits, that a schedule can take away at a "
    "**predicted** drop of at most one point; it is no size of a file, and adds up the "
    "drops measured layer by layer, so verify a schedule before relying on it. Runs whose images cannot show one point "
    "come last. The uncompressed model's own figure is **measured**, on as many images as the row says."
)


def leaderboard_table(rows: Sequence[LeaderboardRow], records: Mapping[str, RunRecord]) -> None:
    """Show the runs, each with the way to its results."""
    st.markdown(_EXPLAINED)
    show_table(
        leaderboard_frame(rows, records),
        _columns(),
        alt_text="Finished runs, the most compressible model first",
        key="leaderboard.table",
    )


def _columns() -> dict[str, Any]:
    return {
        "title": st.column_config.TextColumn("Run", pinned=True, width="medium"),
        "link": st.column_config.LinkColumn("Results", display_text="Open", width=70),
        "compression": st.column_config.TextColumn("Compression", width=105),
        "removable": st.column_config.ProgressColumn(
            "Removable for 1 point",
            format="%.0f %%",
            min_value=0,
            max_value=100,
            help="Predicted, of bytes if stored compactly. Empty where a run has no measured accuracy or agreement to "
            "count points in.",
        ),
        "told": st.column_config.TextColumn(
            "How sure", width=185, help="Images that cannot show a drop of one point in one layer say nothing of all."
        ),
        "counted_in": st.column_config.TextColumn("Points of", help="Agreement counts the images answered alike."),
        "images": st.column_config.NumberColumn("Images", format="localized", width=70),
        "params": st.column_config.NumberColumn("Parameters", format="compact", width=95),
        "baseline": st.column_config.NumberColumn(
            "Uncompressed",
            format="%.4g",
            help="Measured, in the metric of the next column; accuracies in percent.",
        ),
        "metric": st.column_config.TextColumn("Metric"),
        "levels": st.column_config.TextColumn("Levels"),
        "headline": st.column_config.TextColumn("In one sentence", width="large"),
        "model": st.column_config.TextColumn("Model"),
    }
