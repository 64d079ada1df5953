"""Tables of a result: which columns, in which words, with which number formats."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from senseapp.ui.vocabulary import MetricView

__all__ = ["apart_columns", "measurement_columns", "show_table", "top_columns"]


def show_table(rows: pd.DataFrame, columns: dict[str, Any], *, alt_text: str, key: str) -> None:
    """Show the given columns of ``rows`` in their order, without an index."""
    st.dataframe(
        rows, column_order=list(columns), column_config=columns, hide_index=True, alt=alt_text, key=key, width="stretch"
    )


def top_columns(metric: MetricView) -> dict[str, Any]:
    """Return the columns of the two top-N tables."""
    return {
        "rank": _rank_column(),
        "row": st.column_config.TextColumn("Layer", width=122),
        "change_text": st.column_config.TextColumn("Change", help=f"{metric.label}. {metric.help}", width=88),
        "interval_text": st.column_config.TextColumn("95 % interval", width=98),
    }


def _rank_column() -> Any:
    return st.column_config.NumberColumn(
        "Rank", help="1 is the most fragile at its level. Layers that cannot be told apart share a rank.", width=42
    )


def measurement_columns(metric: MetricView) -> dict[str, Any]:
    """Return the columns of the whole table; numbers stay numbers, so that every column sorts."""
    return {
        "layer": st.column_config.TextColumn("Layer", pinned=True),
        "layer_type": st.column_config.TextColumn("Type"),
        "level_text": st.column_config.TextColumn("Level"),
        "rank": _rank_column(),
        "drop": st.column_config.NumberColumn(metric.axis, format="%.4g", help="Above zero is worse."),
        "low": st.column_config.NumberColumn("from (95 %)", format="%.4g"),
        "high": st.column_config.NumberColumn("to (95 %)", format="%.4g"),
        "value": st.column_config.NumberColumn(metric.value_axis, format="%.4g"),
        "source": st.column_config.TextColumn("Value"),
        "params": st.column_config.NumberColumn("Parameters", format="localized"),
        "macs": st.column_config.NumberColumn("MACs", format="compact", help="Multiply-accumulates for one image."),
        "members": st.column_config.TextColumn("Compressed together"),
    }


def apart_columns() -> dict[str, Any]:
    """Return the columns of the layers that have no value."""
    return {
        "layer": st.column_config.TextColumn("Layer"),
        "status": st.column_config.TextColumn("Status"),
        "levels": st.column_config.TextColumn("Levels"),
        "reason": st.column_config.TextColumn("Reason", width="large"),
    }
