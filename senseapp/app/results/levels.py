"""The tabs that show all levels at once: curves of chosen layers, the heat map, and the table of every number."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common.download import offer_file
from senseapp.app.common.figure import figure, place_of, rows_height
from senseapp.app.common.state import session
from senseapp.app.results.layer_side import choose_layers, layer_side
from senseapp.app.results.view import RunView
from senseapp.core.codec import dumps
from senseapp.server.outputs import sensitivity_csv
from senseapp.store.distiller import can_be_distiller_csv, write_distiller_csv
from senseapp.views.charts.levels import sensitivity_curves, sensitivity_heatmap
from senseapp.views.frames.levels import curve_rows, drop_domain
from senseapp.views.palette import fragility_legend
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of

_READING = (
    "One curve per layer, compressed alone; bands are 95 % intervals. A flat curve can be compressed far, one that "
    "bends upwards only as far as its bend."
)


def curves_tab(view: RunView) -> None:
    """Show how the loss of each chosen layer grows with compression."""
    chart, side = st.columns([7, 3], gap="medium")
    with side:
        chosen = choose_layers(view)
    with chart:
        if chosen:
            _curves(view, chosen)
        else:
            st.info("No layer passes the filters. Choose at least one.", icon=":material/touch_app:")


def _curves(view: RunView, chosen: list[str]) -> None:
    every, metric, scale = view.frame, view.metric, view.compression.scale
    figure(
        "How fast does the loss grow with compression?",
        sensitivity_curves(
            curve_rows(every[every["row"].isin(chosen)], scale),
            all_layers=list(dict.fromkeys(every["row"])),
            x_title=scale.axis,
            y_title=metric.axis,
            picked=view.picked_row,
            falling=scale.stronger_is_lower,
            height=460,
            y_domain=drop_domain(every, metric, num_classes=view.result.profile.num_classes),
        ),
        alt_text=_in_words(view, len(chosen)),
        key=f"curves.{view.run_id}.{session().pick_round}",
        run_id=view.run_id,
        caveat=caveat_of(view.result),
        reading=_READING,
        lines=view.lines,
    )


def _in_words(view: RunView, layers: int) -> str:
    worst = view.frame.sort_values("drop", ascending=False).head(1)
    most = f" The largest: {worst['description'].iloc[0]}." if len(worst) else ""
    return f"{view.metric.change_title} of {fmt.plural(layers, 'layer')} at {', '.join(view.level_texts)}.{most}"


_HEATMAP_READING = (
    "Compress each layer up to where its row leaves blue. A ring: no clear loss; grey: these images cannot tell "
    "whether it is tolerable. Click a cell to see its layer."
)


def heatmap_tab(view: RunView) -> None:
    """Show where in the network, and from which level on, compression hurts."""
    chart, side = st.columns([5, 3], gap="medium")
    with side:  # a click changes this column, so it is drawn before the chart
        layer_side(view)
    with chart:
        _cells(view)


def _cells(view: RunView) -> None:
    order = list(dict.fromkeys(view.frame["row"]))
    figure(
        "Where in the network, and from which level on, does compression hurt?",
        sensitivity_heatmap(view.frame, view.metric, order=order, level_texts=view.level_texts, picked=view.picked_row),
        alt_text=_in_words(view, len(order)),
        key=f"heatmap.{view.run_id}.{session().pick_round}",
        run_id=view.run_id,
        caveat=caveat_of(view.result),
        reading=_HEATMAP_READING,
        legend=fragility_legend(view.metric),
        frame_height=rows_height(len(order)),
        shown=place_of(view.picked_row, list(dict.fromkeys(view.frame["layer"]))),
        lines=view.lines,
        data=view.frame,
    )


def layer_files(view: RunView) -> None:
    """Offer everything that was measured as files."""
    run_id = view.run_id
    with st.container(horizontal=True):
        offer_file(
            "Download CSV",
            lambda: sensitivity_csv(view.result),
            "sensitivity.csv",
            key=f"table.csv.{run_id}",
            help="One row per layer, level and metric; opens in any spreadsheet.",
        )
        offer_file(
            "Download JSON",
            lambda: dumps(view.result.without_folders()),
            "result.json",
            key=f"table.json.{run_id}",
            help="Everything this run found, with its settings; senseapp reads it back. Of files on this server it has "
            "the names alone.",
        )
        if can_be_distiller_csv(view.result):
            offer_file(
                "Download Distiller CSV",
                lambda: write_distiller_csv(view.result),
                "distiller_sensitivity.csv",
                key=f"table.distiller.{run_id}",
                help="Columns parameter, sparsity, top1, top5, loss, as Distiller writes them; the Runs page reads it.",
            )
