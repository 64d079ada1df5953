"""The tabs of layers: bars with the table of values and the layers apart; curves of all levels; the heat map; files."""

from typing import Any

import pandas as pd
import streamlit as st

from senseapp.app.common.address import SWITCH, bound, choose
from senseapp.app.common.download import offer_file
from senseapp.app.common.expert import expert
from senseapp.app.common.figure import MARGINS, FigureHead, figure, figure_head, place_of, rows_height
from senseapp.app.common.state import session
from senseapp.app.common.tables import text_table
from senseapp.app.results.layer_side import choose_layers, layer_panel, layer_side
from senseapp.app.results.view import RunView
from senseapp.core.codec import dumps
from senseapp.core.markdown import md
from senseapp.records.spec import without_folders
from senseapp.server.outputs import sensitivity_csv
from senseapp.store.distiller import can_be_distiller_csv, write_distiller_csv
from senseapp.views.charts.layers import drop_domain, marked, sensitivity_bars
from senseapp.views.charts.levels import curve_rows, sensitivity_curves, sensitivity_heatmap
from senseapp.views.frames.results import counted_rows, layer_rewards
from senseapp.views.palette import fragility_legend
from senseapp.views.report.tables import apart_table, unlisted_table
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of, reached_note

READING = "Each layer alone, by its name in the network: compress blue ones, spare red ones."
_FITTED = " A whole file can lose less than a layer here: its weights are fitted to images."
_INTERVALS = f" Lines are {MARGINS}; a ring: no clear loss; grey: too few images to say."
_OPEN = " A line that ends where the longest ones do may go on."
_ESTIMATED = " Pale bars are estimates: length and colour may change once they are measured."
_LONGEST_NAME, _NAME_WIDTH = 21, 150  # characters and pixels of the column of a layer's name
_NETWORK, _SENSITIVITY = "Network order", "Most fragile first"


def layers_tab(view: RunView) -> None:
    """Show how much each layer loses at the chosen level."""
    side, chart = st.columns([3, 5], gap="medium")  # the answer first, on narrow screens too
    beside_chart = side.container()
    with chart:
        head = figure_head()
    run_id = view.run_id
    with head[1].popover("Order and look", icon=":material/tune:", type="tertiary"):
        order = choose("Order", (_NETWORK, _SENSITIVITY), _NETWORK, run_id, "order", label_visibility="collapsed")
        is_log = st.toggle(
            "Logarithmic",
            **bound(run_id, "log", SWITCH, usual=False, key=f"layers.log.{run_id}"),
            help="Straight up to what is tolerable, logarithmic beyond: small losses stay visible beside large ones.",
        )
    rows = marked(view.ranked if order == _SENSITIVITY else view.rows)

    with beside_chart:  # a click changes this column, so it is drawn before the chart
        if view.picked:
            layer_panel(view)
        values_table(view)
    with chart:
        bars_figure(view, rows, key=f"bars.{run_id}.{session().pick_round}", is_log=is_log, head=head)
    _layers_apart(view)
    layer_files(view)


def bars_figure(
    view: RunView,
    rows: pd.DataFrame,
    *,
    key: str,
    picks: bool = True,
    is_log: bool = False,
    large: bool = False,
    head: FigureHead | None = None,
    reading: str = "",
) -> None:
    """Draw the ``rows`` of the chosen level as bars under their question, on request on a logarithmic axis.

    Without ``picks`` nothing happens on a click; ``large`` is for a room.
    """
    is_rounded = view.compression.sets_bits and not view.result.spec.sensitivity.adapted
    is_open = bool(rows["interval_text"].astype(str).str.contains("over ").any())
    reading = reading or READING + _FITTED * is_rounded + (_INTERVALS + _OPEN * is_open) * bool(rows["ranked"].any())
    domain = drop_domain(rows, view.metric, num_classes=view.result.profile.num_classes)
    few = f"{len(rows)} of {fmt.plural(len(view.rows), view.target_noun)}"
    figure(
        f"What does each layer lose at {view.level_text}?"
        if len(rows) == len(view.rows)
        else f"The {few} that lose most at {view.level_text}",
        sensitivity_bars(rows, view.metric, x_domain=domain, picked=view.picked_row, is_log=is_log),
        alt_text=_bars_in_words(view),
        key=key,
        run_id=view.run_id if picks else "",
        about=view.about,
        caveat=caveat_of(view.result),
        reading=reading + (_ESTIMATED if (rows["source"] == "estimated").any() else ""),
        legend=fragility_legend(view.metric),
        frame_height=rows_height(len(rows)),
        shown=place_of(view.picked_row, list(rows["layer"])),
        lines=view.lines,
        data=rows,
        saves=picks,
        large=large,
        head=head,
    )


_REWARD = (
    "−(1 − right answers) · ln(multiplications left), with the level's share of a layer's inputs and outputs gone. "
    "Higher is better: compress a layer as far as it rises."
)


def values_table(view: RunView) -> None:
    """Show the values of all layers, the most fragile first, and how far the level was truly reached."""
    metric, column, rows = view.metric, st.column_config, marked(view.ranked)
    rows = rows.assign(reached_text=[view.compression.scale.reached_text(level) for level in rows["reached"]])
    if metric.as_answers:  # of what they are stands in the head
        rows = rows.assign(change_text=rows["change_text"].str.rsplit(n=1).str[0])
    if (rewards := layer_rewards(rows, view.result, metric)) is not None:
        rows = rows.assign(reward=rewards)
    st.markdown(md("## All values at {}", view.level_text))
    if view.target_noun == "group":
        st.caption(f"{counted_rows(rows)}: each is pruned as one.")
    note = reached_note(view.result)
    if note:
        st.caption(note)
    columns: dict[str, Any] = {"row": column.TextColumn("Layer", pinned=True, width=_NAME_WIDTH)}
    if note and view.result.profile.sizes_known:
        columns["reached_text"] = column.TextColumn("Reached", help="The level that was truly reached.", width=70)
    columns |= {
        "change_text": column.TextColumn(
            metric.change_title if metric.divergence else "Drop",
            help=f"{metric.change_title}. Above zero is worse.",
            width=112 if metric.as_answers else 95,
        ),
        "interval_text": column.TextColumn("95 % interval", width=112),
    }
    if rows["source"].nunique() > 1:
        columns["source"] = column.TextColumn("Source", width=80)
    columns["params"] = column.NumberColumn("Parameters", format="compact", width=80)
    about = "1 is the most fragile at its level. Layers whose intervals overlap share a rank."
    columns["rank"] = column.NumberColumn("Rank", help=about, width=42)
    if expert():
        if not metric.divergence:  # whose value is its drop
            columns["value"] = column.NumberColumn(metric.value_axis, format=f"%.{metric.digits}f")
        columns["macs"] = column.NumberColumn("Multiplications", format="compact", help="For one image.")
        columns["reward"] = column.NumberColumn("Reward", format="%.3f", help=_REWARD)
    known = [name for name in columns if name in rows and not (name == "rank" and rows["rank"].isna().all())]
    st.dataframe(
        rows.assign(row=rows["row"].map(fmt.distinct_names(rows["row"], _LONGEST_NAME)))[known],
        column_config=columns,
        hide_index=True,
        alt=f"{metric.label} of {counted_rows(rows)} at {view.level_text}",
        key=f"layers.values.{view.run_id}",
        width="stretch",
    )


def _bars_in_words(view: RunView) -> str:
    ranked = view.ranked
    if ranked.empty:
        return "No layer has a value at this level."
    return (
        f"{view.metric.change_title} of {counted_rows(ranked)} at {view.level_text}. Most fragile: "
        f"{'; '.join(ranked['description'].head(3))}. {ranked['unclear'].sum()} with no clear loss."
    )


def _layers_apart(view: RunView) -> None:
    for name, table in {"apart": apart_table(view.result), "unlisted": unlisted_table(view.result.profile)}.items():
        if table is not None:
            st.markdown(md("## {}", table.title))
            st.caption(table.note)
            text_table(table.columns, table.rows, alt_text=table.title, key=f"{name}.{view.run_id}")


def curves_tab(view: RunView) -> None:
    """Show how the loss of each chosen layer grows with compression."""
    chart, side = st.columns([7, 3], gap="medium")
    with side:
        chosen = choose_layers(view)
    if not chosen:
        chart.info("No layer passes the filters. Choose at least one.", icon=":material/touch_app:")
        return
    every, metric, scale = view.frame, view.metric, view.compression.scale
    with chart:
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
            alt_text=_levels_in_words(view, len(chosen)),
            key=f"curves.{view.run_id}.{session().pick_round}",
            run_id=view.run_id,
            caveat=caveat_of(view.result),
            reading="One curve per layer, compressed alone; bands are 95 % intervals. A flat curve can be compressed "
            "far, one that bends upwards only as far as its bend.",
            lines=view.lines,
        )


def _levels_in_words(view: RunView, layers: int) -> str:
    worst = view.frame.sort_values("drop", ascending=False).head(1)
    most = f" The largest: {worst['description'].iloc[0]}." if len(worst) else ""
    return f"{view.metric.change_title} of {fmt.plural(layers, 'layer')} at {', '.join(view.level_texts)}.{most}"


def heatmap_tab(view: RunView) -> None:
    """Show where in the network, and from which level on, compression hurts."""
    chart, side = st.columns([5, 3], gap="medium")
    with side:  # a click changes this column, so it is drawn before the chart
        layer_side(view)
    frame, order = view.frame, list(dict.fromkeys(view.frame["row"]))
    with chart:
        figure(
            "Where in the network, and from which level on, does compression hurt?",
            sensitivity_heatmap(frame, view.metric, order=order, level_texts=view.level_texts, picked=view.picked_row),
            alt_text=_levels_in_words(view, len(order)),
            key=f"heatmap.{view.run_id}.{session().pick_round}",
            run_id=view.run_id,
            caveat=caveat_of(view.result),
            reading="Compress each layer up to where its row leaves blue. A ring: no clear loss; grey: these images "
            "cannot tell whether it is tolerable. Click a cell to see its layer.",
            legend=fragility_legend(view.metric),
            frame_height=rows_height(len(order)),
            shown=place_of(view.picked_row, list(dict.fromkeys(frame["layer"]))),
            lines=view.lines,
            data=frame,
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
            lambda: dumps(without_folders(view.result)),
            "result.json",
            key=f"table.json.{run_id}",
            help="Everything this run found, with its settings; senseapp reads it back. Of files on this server it has "
            "the names alone.",
        )
        if expert() and can_be_distiller_csv(view.result):
            offer_file(
                "Download Distiller CSV",
                lambda: write_distiller_csv(view.result),
                "distiller_sensitivity.csv",
                key=f"table.distiller.{run_id}",
                help="Columns parameter, sparsity, top1, top5, loss, as Distiller writes them; the Runs page reads it.",
            )
