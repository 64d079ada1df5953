"""Tables of a comparison of runs: which columns, in which words, with which number formats."""

from __future__ import annotations

from typing import Any

import streamlit as st

from senseapp.ui.comparison_frames import letter


def agreement_columns() -> dict[str, Any]:
    """Return the columns of the rank correlations between runs."""
    return {
        "pair": st.column_config.TextColumn("Runs"),
        "spearman": st.column_config.NumberColumn(
            "Spearman", format="%.2f", help="1 is the same order, −1 the opposite."
        ),
        "layers": st.column_config.NumberColumn("Layers"),
    }


def moves_columns(sides: int) -> dict[str, Any]:
    """Return the columns of the layers whose rank moved between ``sides`` runs."""
    columns: dict[str, Any] = {
        "row": st.column_config.TextColumn("Layer", pinned=True),
        "shift": st.column_config.NumberColumn("Places moved", format="%g"),
        "fragile_in": st.column_config.TextColumn("More fragile in"),
        "sure": st.column_config.TextColumn("Sure", help="Whether the 95 % intervals rule out that nothing moved."),
    }
    for side in map(letter, range(sides)):
        columns[f"rank_{side}"] = st.column_config.TextColumn(f"Rank in {side}")
        if sides == 2:  # more would not fit beside each other; the bars show them
            columns[f"change_{side}"] = st.column_config.TextColumn(f"Drop in {side}", help="Above zero is worse.")
    return columns


def unmatched_columns(sides: int) -> dict[str, Any]:
    """Return the columns of the layers that lack a value in one of ``sides`` runs."""
    reasons = {name: st.column_config.TextColumn(f"In {name}", width="large") for name in map(letter, range(sides))}
    return {"layer": st.column_config.TextColumn("Layer", pinned=True), **reasons}
