"""A comparison: its finding in one sentence, bars in pairs, the scatter of ranks, and what moved or was left out."""

from __future__ import annotations

import streamlit as st

from senseapp.metrics import METRICS
from senseapp.results.comparison import Comparison
from senseapp.ui import format as fmt
from senseapp.ui.charts.paired_bars import pair_step, paired_bars
from senseapp.ui.charts.rank_scatter import rank_scatter
from senseapp.ui.comparison_frames import (
    agreement_frame,
    moves_frame,
    pair_frame,
    scatter_frame,
    side_labels,
    unmatched_frame,
)
from senseapp.ui.comparison_tables import agreement_columns, moves_columns, unmatched_columns
from senseapp.ui.comparison_wording import caveat_of_sides, finding, matching_text
from senseapp.ui.components.figure import figure, rows_height
from senseapp.ui.state import drop_pick, picked_layer, session
from senseapp.ui.tables import show_table

_PICKS = "compare"
_NETWORK, _MOVED = "Network order", "Moved most first"
_RANKS, _VALUES = "Ranks", "Values"


@st.fragment
def comparison_view(comparison: Comparison) -> None:
    """Show all views of a comparison; a click answers without running the rest of the page again."""
    st.markdown(f"## {finding(comparison)}")
    st.caption(
        matching_text(comparison),
        help="Spearman's rank correlation: 1 is the same order, 0 no relation, −1 the opposite order. Layers are "
        "matched by name; those that are compressed together in every run count once.",
    )
    if comparison.layers:
        bars, scatter = st.columns([5, 4], gap="medium")
        with bars:
            _bars(comparison)
        with scatter:
            _scatter(comparison)
            _agreements(comparison)
        _moves(comparison)
    _unmatched(comparison)


def _picked(comparison: Comparison) -> str:
    layer = picked_layer(_PICKS)
    return layer if any(layer == known.layer for known in comparison.layers) else ""


def _bars(comparison: Comparison) -> None:
    order = _choose("Order", (_NETWORK, _MOVED), key="order")
    rows = pair_frame(comparison, by_shift=order == _MOVED)
    labels = side_labels(comparison.sides)
    metric = METRICS[comparison.metric]
    figure(
        "What does each layer lose in each run?",
        paired_bars(rows, metric, labels=labels, picked=_picked(comparison)),
        alt_text=f"{metric.change_title} of {fmt.plural(len(comparison.layers), 'layer')} in {' and '.join(labels)}. "
        + finding(comparison),
        key=f"compare.bars.{session().pick_round}",
        run_id=_PICKS,
        reading="One bar per run, layer by layer; the line through it is its 95 % interval. Pale bars are estimates.",
        caveat=caveat_of_sides(comparison.sides),
        frame_height=rows_height(len(comparison.layers), step=pair_step(len(labels))),
    )


def _scatter(comparison: Comparison) -> None:
    shown = _choose("Axes", (_RANKS, _VALUES), key="axes")
    labels = side_labels(comparison.sides)
    picked = _picked(comparison)
    figure(
        "Do the runs agree on which layers are fragile?",
        rank_scatter(
            scatter_frame(comparison),
            METRICS[comparison.metric],
            labels=labels,
            ranks=shown == _RANKS,
            picked=picked,
        ),
        alt_text=finding(comparison),
        key=f"compare.scatter.{session().pick_round}",
        run_id=_PICKS,
        reading="One point per layer. On the dashed line both runs say the same; named are the layers whose rank moved "
        "most. Grey lines are 95 % intervals.",
        caveat=caveat_of_sides(comparison.sides),
    )
    if picked:
        _picked_line(comparison, picked)


def _picked_line(comparison: Comparison, picked: str) -> None:
    """Say what the picked layer loses on each side."""
    rows = pair_frame(comparison)
    with st.container(border=True, key="compare_picked"):
        head = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center")
        head.markdown(f"**{picked}**")
        head.button("Close", key="compare.close", type="tertiary", on_click=drop_pick, args=(_PICKS,))
        lines = (
            f"{row.side}: **{row.change_text}** ({row.interval_text}), rank {row.rank_text}, {row.source}"
            for row in rows[rows["layer"] == picked].itertuples()
        )
        st.markdown("  \n".join(f":small[{line}]" for line in lines))


def _agreements(comparison: Comparison) -> None:
    """Show the rank correlation of every pair, where there is more than the one of the headline."""
    if len(comparison.sides) < 3:
        return
    st.markdown("## Rank correlation of each pair")
    show_table(
        agreement_frame(comparison),
        agreement_columns(),
        alt_text="Spearman's rank correlation of each pair of runs",
        key="compare.agreement",
    )


def _moves(comparison: Comparison) -> None:
    rows = moves_frame(comparison)
    st.markdown("## Which layers moved most?")
    if rows.empty:
        st.caption("Every layer has the same rank in every run.")
        return
    st.caption(
        "Ranks are among the matched layers, 1 for the most fragile; in brackets those that the 95 % intervals leave "
        "possible. A move is sure if no rank is possible in both runs."
    )
    show_table(
        rows,
        moves_columns(len(comparison.sides)),
        alt_text="Layers whose rank moved, those that moved furthest first",
        key="compare.moves",
    )


def _unmatched(comparison: Comparison) -> None:
    rows = unmatched_frame(comparison)
    if rows.empty:
        return
    with st.expander(f"{fmt.plural(len(rows), 'layer')} without a value in every run", expanded=not comparison.layers):
        show_table(
            rows,
            unmatched_columns(len(comparison.sides)),
            alt_text="Layers that lack a value in a run, with the reason",
            key="compare.unmatched",
        )


def _choose(label: str, options: tuple[str, str], *, key: str) -> str:
    return st.segmented_control(
        label,
        options,
        default=options[0],
        required=True,
        key=f"compare.{key}",
        label_visibility="collapsed",
        persist_state="session",
    )
