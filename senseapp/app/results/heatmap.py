"""The Heat map tab: all layers at all levels."""

from __future__ import annotations

import streamlit as st

from senseapp.app.charts.heatmap import sensitivity_heatmap
from senseapp.app.common.figure import figure, place_of, rows_height
from senseapp.app.common.state import session
from senseapp.app.frames.fragility import fragility_legend
from senseapp.app.results.layer_side import layer_side
from senseapp.app.results.view import RunView, answer_first
from senseapp.app.words import format as fmt
from senseapp.app.words.wording import caveat_of

_READING = (
    "Compress each layer up to where its row leaves blue. A ring: no clear loss; grey: these images cannot tell "
    "whether it is tolerable. Click a cell to see its layer."
)


def heatmap_tab(view: RunView) -> None:
    """Show where in the network, and from which level on, compression hurts."""
    chart, side = st.columns([5, 3], gap="medium")
    answer_first(view, chart=(chart, lambda: _cells(view)), side=(side, lambda: layer_side(view)))


def _cells(view: RunView) -> None:
    order = list(dict.fromkeys(view.frame["row"]))
    figure(
        "Where in the network, and from which level on, does compression hurt?",
        sensitivity_heatmap(view.frame, view.metric, order=order, level_texts=view.level_texts, picked=view.picked_row),
        alt_text=_in_words(view, len(order)),
        key=f"heatmap.{view.run_id}.{session().pick_round}",
        run_id=view.run_id,
        caveat=caveat_of(view.result),
        reading=_READING,
        legend=fragility_legend(view.metric),
        frame_height=rows_height(len(order)),
        shown=place_of(view.picked_row, list(dict.fromkeys(view.frame["layer"]))),
        lines=view.lines,
        data=view.frame,
    )


def _in_words(view: RunView, layers: int) -> str:
    worst = view.frame.sort_values("drop", ascending=False).head(1)
    most = f" The largest: {worst['description'].iloc[0]}." if len(worst) else ""
    return f"{view.metric.change_title} of {fmt.plural(layers, 'layer')} at {', '.join(view.level_texts)}.{most}"
