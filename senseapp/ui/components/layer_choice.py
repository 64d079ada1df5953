"""The choice of the layers whose curves are drawn: filters, and how many of what passes them."""

from __future__ import annotations

import streamlit as st

from senseapp.ui.components.run_view import RunView
from senseapp.ui.layer_filter import LayerFilter, most_fragile, types_of
from senseapp.ui.network import blocks_of

_FRAGILE, _ALL, _NAMED = "Fragile", "All", "By name"
_AT_FIRST = 5


def choose_layers(view: RunView) -> list[str]:
    """Return ``row`` of the chosen layers, in network order; the picked layer is always among them."""
    frame = _filter(view).rows(view.frame)
    fitting = list(dict.fromkeys(frame["row"]))
    chosen = _chosen(view, fitting)
    named = set(most_fragile(frame, view.level, chosen) if isinstance(chosen, int) else chosen)
    named |= set(view.frame["row"][view.frame["layer"] == view.picked_row])
    rows = list(dict.fromkeys(view.frame["row"]))
    shown = [row for row in rows if row in named]
    st.caption(f"{len(shown)} of {len(rows)} curves are drawn.")
    return shown


def _chosen(view: RunView, fitting: list[str]) -> int | list[str]:
    """Return how many of the most fragile layers to draw, or which layers."""
    mode = st.segmented_control(
        "Draw", [_FRAGILE, _ALL, _NAMED], default=_FRAGILE, required=True, key=f"curves.mode.{view.run_id}",
        help="The most fragile ones, all, or those you name, of the layers that pass the filters.",
        persist_state="session",
    )  # fmt: skip
    if mode == _ALL:
        return fitting
    if mode == _NAMED:
        return st.multiselect(
            "Layers", fitting, key=f"curves.layers.{view.run_id}", placeholder="Type a part of a name",
            persist_state="session",
        )  # fmt: skip
    most = max(1, view.frame["row"].nunique())
    number = st.number_input(
        "How many", 1, most, min(_AT_FIRST, most), key=f"curves.number.{view.run_id}",
        help=f"The most fragile layers at {view.level_text}.", persist_state="session",
    )  # fmt: skip
    return int(number)


def _filter(view: RunView) -> LayerFilter:
    run_id, types = view.run_id, types_of(view.frame)
    name = st.text_input(
        "Search", key=f"curves.search.{run_id}", placeholder="Part of a name, or layer1.*.conv2",
        persist_state="session",
    )  # fmt: skip
    blocks = st.multiselect(
        "Blocks", blocks_of(view.result.profile), key=f"curves.blocks.{run_id}", placeholder="All blocks",
        persist_state="session",
    )  # fmt: skip
    chosen = (
        st.pills("Types", types, selection_mode="multi", key=f"curves.types.{run_id}", persist_state="session")
        if len(types) > 1
        else []
    )
    return LayerFilter(name=name, blocks=tuple(blocks), types=tuple(chosen))
