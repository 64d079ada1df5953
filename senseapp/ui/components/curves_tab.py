"""The Curves tab: the metric of chosen layers against the level."""

from __future__ import annotations

import streamlit as st

from senseapp.ui import format as fmt
from senseapp.ui.charts import sensitivity_curves
from senseapp.ui.components.figure import caveat_of, figure
from senseapp.ui.components.run_view import RunView
from senseapp.ui.frames import top_frame
from senseapp.ui.state import session

__all__ = ["curves_tab"]

_SHOWN_AT_FIRST = 5


def curves_tab(view: RunView) -> None:
    """Show how the loss of each chosen layer grows with compression."""
    names = list(dict.fromkeys(view.frame["row"]))
    chosen = _choose_layers(view, names)
    rows = view.frame[view.frame["row"].isin(chosen)]
    if rows.empty:
        st.info("Choose at least one layer.", icon=":material/touch_app:")
        return
    figure(
        "How fast does the loss grow with compression?",
        sensitivity_curves(rows, view.metric, all_layers=names, level_texts=view.level_texts, picked=view.picked),
        alt_text=f"{view.metric.label} of {fmt.plural(len(chosen), 'layer')} over {', '.join(view.level_texts)}",
        key=f"curves.{view.run_id}.{session().pick_round}",
        run_id=view.run_id,
        caveat=caveat_of(view.result),
        reading="A flat curve can be compressed far. Bands are 95 % intervals; point at a curve to follow it.",
    )


def _choose_layers(view: RunView, names: list[str]) -> list[str]:
    row = st.container(horizontal=True, vertical_alignment="bottom")
    everything = row.toggle(
        "All layers",
        key=f"curves.all.{view.run_id}",
        help="Draw every layer at once; bands appear for eight layers or fewer.",
        persist_state="session",
    )
    if everything:
        return names
    return row.multiselect(
        "Layers",
        names,
        default=list(top_frame(view.frame, view.level, _SHOWN_AT_FIRST, fragile=True)["row"]),
        key=f"curves.layers.{view.run_id}",
        help="Type a part of a name. The most fragile layers are chosen at first.",
        persist_state="session",
    )
