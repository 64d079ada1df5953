"""The Network tab: the module tree with what each block costs and what it loses."""

from __future__ import annotations

import streamlit as st

from senseapp.ui import format as fmt
from senseapp.ui.charts import network_bars
from senseapp.ui.components.figure import figure, rows_height
from senseapp.ui.components.layer_panel import layer_panel
from senseapp.ui.components.run_view import RunView
from senseapp.ui.network import blocks_of, deepest, network_frame
from senseapp.ui.state import session

__all__ = ["network_tab"]

_WHOLE = "Whole network"
_PARAMS, _MACS = "Parameters", "MACs"
_OPEN_AT_FIRST = 2
_READING = (
    "A bar's length is the share of the network that a block or layer holds, its colour what the network loses; a "
    "block has the colour of its most fragile layer. Long and blue is where to save. Click a row to pick its layer "
    "in every view."
)


def network_tab(view: RunView) -> None:
    """Show the tree, and the picked layer beside it."""
    block, depth, by_macs = _choose(view)
    profile = view.result.profile
    rows = network_frame(profile, view.rows, depth=depth, block=block, by_macs=by_macs)
    share = f"Share of all {'MACs' if by_macs else 'parameters'}" if profile.sizes_known else "Share of all layers"
    chart, side = st.columns([5, 4], gap="medium")
    with chart:
        figure(
            f"Where does the network hold its weight, and what does it lose {view.at}?",
            network_bars(rows, view.metric, share_title=share, picked=view.picked),
            alt_text=f"{fmt.plural(len(rows), 'block')} and layers with their {share.lower()}, coloured by "
            f"{view.metric.label} at {view.level_text}",
            key=f"network.{view.run_id}.{session().pick_round}",
            run_id=view.run_id,
            reading=_READING,
            frame_height=rows_height(len(rows)),
        )
    with side:
        if view.picked:
            layer_panel(view)
        else:
            st.info("Click a row to see its layer here.", icon=":material/touch_app:")


def _choose(view: RunView) -> tuple[str, int, bool]:
    """Return the block to show (empty: all), the levels to open, and whether lengths are MACs."""
    profile, run_id = view.result.profile, view.run_id
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="medium")
    blocks = [_WHOLE, *blocks_of(profile)]
    chosen = row.selectbox("Show", blocks, key=f"network.block.{run_id}", help="One block, or all of them.", width=260)
    block = "" if chosen == _WHOLE else chosen
    most = deepest(profile, block)
    depth = row.number_input(
        "Levels to open",
        min_value=1,
        max_value=most,
        value=min(_OPEN_AT_FIRST, most),
        key=f"network.depth.{run_id}.{block}",
        help="1 shows blocks only; more shows what is inside them.",
        width=150,
    )
    by_macs = False
    if profile.sizes_known:
        length = row.segmented_control(
            "Length", [_PARAMS, _MACS], default=_PARAMS, required=True, key=f"network.length.{run_id}"
        )
        by_macs = length == _MACS
    return block, int(depth), by_macs
