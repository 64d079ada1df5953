"""The Layers tab: bars, the picked layer beside them, the two top-N tables, and the layers apart."""

from __future__ import annotations

import streamlit as st

from senseapp.ui import format as fmt
from senseapp.ui.charts import sensitivity_bars
from senseapp.ui.components.figure import caveat_of, figure, rows_height
from senseapp.ui.components.layer_panel import layer_panel
from senseapp.ui.components.run_view import RunView
from senseapp.ui.frames import apart_frame, at_level, top_frame
from senseapp.ui.state import session
from senseapp.ui.tables import apart_columns, show_table, top_columns

__all__ = ["bars_figure", "layers_tab"]

_READING = (
    "Blue: robust, red: fragile. The line through each bar is its 95 % interval; a ring marks a layer that cannot be "
    "told from zero. Pale bars are estimates."
)
_NETWORK, _SENSITIVITY = "Network order", "Most fragile first"


def layers_tab(view: RunView) -> None:
    """Show how much each layer loses at the chosen level."""
    by_sensitivity = _choose_order(view)
    chart, side = st.columns([5, 4], gap="medium")
    with chart:
        bars_figure(view, key=f"bars.{view.run_id}.{session().pick_round}", by_sensitivity=by_sensitivity)
    with side:
        if view.picked:
            layer_panel(view)
        _top_tables(view)
    _layers_apart(view)


def _choose_order(view: RunView) -> bool:
    chosen = st.segmented_control(
        "Order",
        [_NETWORK, _SENSITIVITY],
        default=_NETWORK,
        required=True,
        key=f"layers.order.{view.run_id}",
        label_visibility="collapsed",
        persist_state="session",
    )
    return chosen == _SENSITIVITY


def bars_figure(view: RunView, *, key: str, by_sensitivity: bool = False, picks: bool = True) -> None:
    """Draw the bars of the chosen level under their question."""
    rows = at_level(view.frame, view.level, by_sensitivity=by_sensitivity)
    low = min(0.0, float(rows["low"].min()), float(rows["drop"].min()))
    high = max(view.metric.factor * view.metric.notable, float(rows["high"].max()), float(rows["drop"].max()))
    margin = 0.03 * (high - low)
    figure(
        f"What does each layer lose {view.at}?",
        sensitivity_bars(rows, view.metric, x_domain=(low - margin, high + margin), picked=view.picked),
        alt_text=_bars_in_words(view),
        key=key,
        run_id=view.run_id if picks else "",
        caveat=caveat_of(view.result),
        reading=_READING,
        frame_height=rows_height(len(rows)),
    )


def _bars_in_words(view: RunView) -> str:
    ranked = at_level(view.frame, view.level, by_sensitivity=True)
    if ranked.empty:
        return "No layer has a value at this level."
    first = ", ".join(f"{row.layer} {row.change_text}" for row in ranked.head(3).itertuples())
    unclear = int(ranked["unclear"].sum())
    return (
        f"{view.metric.label} of {fmt.plural(len(ranked), 'layer')} at {view.level_text}. "
        f"Most fragile: {first}. {unclear} cannot be told from zero."
    )


def _top_tables(view: RunView) -> None:
    total = len(view.rows)
    if not total:
        return
    number = st.number_input(
        "Layers in each table",
        min_value=1,
        max_value=total,
        value=min(5, total),
        key=f"layers.top.{view.run_id}",
        help="How many of the most fragile and of the most robust layers the two tables name.",
        persist_state="session",
        width=180,
    )
    for title, fragile in (("Most fragile", True), ("Most robust", False)):
        st.markdown(f"##### {title} at {view.level_text}")
        show_table(
            top_frame(view.frame, view.level, int(number), fragile=fragile),
            top_columns(view.metric),
            alt_text=f"{title} layers at {view.level_text}",
            key=f"layers.{'fragile' if fragile else 'robust'}.{view.run_id}",
        )


def _layers_apart(view: RunView) -> None:
    rows = apart_frame(view.result)
    if rows.empty:
        return
    st.markdown(f"##### {fmt.plural(len(rows), 'layer')} without a value")
    st.caption("They are not robust and not fragile: nothing could be measured, for the reason given.")
    show_table(rows, apart_columns(), alt_text="Layers without a value, with the reason", key=f"apart.{view.run_id}")
