"""The tabs that show all levels at once: curves of chosen layers, the heat map, and the table of every number."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import streamlit as st

from senseapp.app.common.address import bound, one_of
from senseapp.app.common.download import download
from senseapp.app.common.figure import figure, place_of, rows_height
from senseapp.app.common.state import session
from senseapp.app.results.layer_side import choose_layers, layer_side
from senseapp.app.results.view import RunView, answer_first, kept_frame
from senseapp.core.codec import dumps
from senseapp.metrics import METRICS, Metric
from senseapp.server.outputs import sensitivity_csv
from senseapp.store.distiller import can_be_distiller_csv, write_distiller_csv
from senseapp.views.charts.levels import sensitivity_curves, sensitivity_heatmap
from senseapp.views.frames.levels import (
    CURVE_AXES,
    REWARD_HELP,
    REWARD_READING,
    REWARDS,
    CurveAxis,
    curve_rows,
    reward_metric,
    why_no_reward,
)
from senseapp.views.palette import fragility_legend
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of

_QUESTIONS = {
    "drop": "How fast does the loss grow with compression?",
    "value": "How well does the network do at each level?",
    **dict.fromkeys(REWARDS, "Where is compute saved for few errors?"),
}
_READINGS = {
    "drop": "One curve per layer, compressed alone; bands are 95 % intervals. A flat curve can be compressed far, one "
    "that bends upwards only as far as its bend.",
    "value": "The metric of the whole network with one layer compressed; bands are 95 % intervals. Take from each "
    "layer the level before its curve leaves the others.",
    **dict.fromkeys(REWARDS, REWARD_READING),
}


def curves_tab(view: RunView) -> None:
    """Show how the loss of each chosen layer grows with compression."""
    chart, side = st.columns([7, 3], gap="medium")
    with side:
        name = _choose_axis(view)
        chosen = choose_layers(view)
    with chart:
        if chosen:
            _curves(view, name, chosen)
        else:
            st.info("No layer passes the filters. Choose at least one.", icon=":material/touch_app:")


def _curves(view: RunView, name: str, chosen: list[str]) -> None:
    axis, rewarded = CURVE_AXES[name], reward_metric(view.result) if name in REWARDS else None
    metric = METRICS[rewarded] if rewarded else view.metric
    every = kept_frame(view.run_id, view.result, metric.name)
    scale = view.compression.scale
    rows = curve_rows(every[every["row"].isin(chosen)], metric, axis, scale)
    figure(
        _QUESTIONS[name],
        sensitivity_curves(
            rows,
            all_layers=list(dict.fromkeys(every["row"])),
            x_title=scale.axis,
            y_title=axis.title(metric),
            picked=view.picked_row,
            falling=scale.stronger_is_lower,
            zero=name == "drop",
            height=460,
            most=metric.largest_estimate(view.result.profile.num_classes) if name == "drop" else math.inf,
        ),
        alt_text=_in_words(view, axis, metric, chosen),
        key=f"curves.{view.run_id}.{session().pick_round}",
        run_id=view.run_id,
        caveat=caveat_of(view.result),
        reading=_READINGS[name],
        lines=view.lines,
    )


def _choose_axis(view: RunView) -> str:
    missing = why_no_reward(view.result)
    names = [name for name in CURVE_AXES if name not in REWARDS or not missing]
    chosen = st.selectbox(
        "Vertical axis",
        names,
        format_func=lambda name: CURVE_AXES[name].label,
        **bound(view.run_id, "axis", one_of(names), names[0], key=f"curves.axis.{view.run_id}"),
        help=missing or REWARD_HELP,
    )
    return chosen if chosen in names else names[0]


def _in_words(view: RunView, axis: CurveAxis, metric: Metric, chosen: list[str]) -> str:
    last = view.level_texts[-1]
    worst = view.frame[view.frame["level_text"] == last].sort_values("drop", ascending=False).head(1)
    most = f" At {last} {worst['layer'].iloc[0]} loses most: {worst['change_text'].iloc[0]}." if len(worst) else ""
    return f"{axis.title(metric)} of {fmt.plural(len(chosen), 'layer')} over {', '.join(view.level_texts)}.{most}"


_HEATMAP_READING = (
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
        alt_text=_cells_in_words(view, len(order)),
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


def _cells_in_words(view: RunView, layers: int) -> str:
    worst = view.frame.sort_values("drop", ascending=False).head(1)
    most = f" The largest: {worst['description'].iloc[0]}." if len(worst) else ""
    return f"{view.metric.change_title} of {fmt.plural(layers, 'layer')} at {', '.join(view.level_texts)}.{most}"


def layer_files(view: RunView) -> None:
    """Offer everything that was measured as files."""
    row = st.container(horizontal=True)

    def offer(kind: str, name: str, make: Callable[[], str | bytes], mime: str, about: str) -> None:
        row.download_button(
            f"Download {kind}",
            download(make),
            file_name=name,
            mime=mime,
            key=f"table.{kind.split()[0].lower()}.{view.run_id}",
            on_click="ignore",
            icon=":material/download:",
            help=about,
        )

    rows_about = "One row per layer, level and metric; opens in any spreadsheet."
    offer("CSV", "sensitivity.csv", lambda: sensitivity_csv(view.result), "text/csv", rows_about)
    whole_about = (
        "Everything this run found, with its settings; senseapp reads it back. Of files on this server it has the "
        "names alone."
    )
    offer("JSON", "result.json", lambda: dumps(view.result.without_folders()), "application/json", whole_about)
    if can_be_distiller_csv(view.result):
        about = "Columns parameter, sparsity, top1, top5, loss, as Distiller writes them; the Runs page reads it."
        table = partial(write_distiller_csv, view.result)
        offer("Distiller CSV", "distiller_sensitivity.csv", table, "text/csv", about)
