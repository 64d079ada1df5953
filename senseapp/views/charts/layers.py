"""One mark per layer: bars of losses and amounts, bars of several runs in groups, and the network as a tree in rows."""

import json
from collections.abc import Sequence
from typing import Any, cast

import altair as alt
import numpy as np
import pandas as pd

from senseapp.metrics import Metric
from senseapp.views.charts import axes
from senseapp.views.palette import CATEGORIES, INK, fragility_colour

EXTREMES = ("loses most", "loses least")
_MARGIN, _ROOM_FOR_WORDS = 0.03, 0.2  # of the range, on the left; on the right, where words stand behind bars


def marked(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``extreme`` to the rows of a level: :data:`EXTREMES` at its largest and smallest drop, else empty.

    Where some are measured, estimates are no extremes, and neither is what lies within them; what cannot be told from
    zero is not the largest.
    """
    words, known = {}, _measured_if_any(rows)
    if len(known) > 1:
        most, least = known["drop"].idxmax(), known["drop"].idxmin()
        if not known["unclear"].astype(bool)[known.index == most].any():
            words = {least: EXTREMES[1]} if known["drop"].min() <= rows["drop"].min() else {}
            words |= {most: EXTREMES[0]} if known["drop"].max() >= rows["drop"].max() else {}
    return rows.assign(extreme=[words.get(index, "") for index in rows.index])


def drop_domain(rows: pd.DataFrame, metric: Metric, *, num_classes: int = 0) -> tuple[float, float]:
    """Return the ends of an axis that holds zero, all measured drops with their intervals, and words.

    Estimates are on it up to twice what is measured, for a single one that is far off would flatten all bars; the
    chart marks those that end outside. Where all are estimates, they count up to :meth:`Metric.largest_estimate`.
    """
    known = _measured_if_any(rows)
    drops = rows["drop"].to_numpy(dtype=float)
    shown = known[["low", "drop", "high"]].to_numpy(dtype=float)
    ends = np.append(shown[np.isfinite(shown)], [0.0, metric.shown(metric.notable)])
    low, high = float(ends.min()), float(ends.max())
    near = drops[(drops >= 2 * low - high) & (drops <= 2 * high - low)]
    low, high = min([low, *near]), max([high, *near])
    if not (rows["source"] == "measured").any():
        high = min(high, float(metric.shown(metric.largest_estimate(num_classes))))
    return low - _MARGIN * (high - low), high + _ROOM_FOR_WORDS * (high - low)


def cut_short(rows: pd.DataFrame, domain: tuple[float, float]) -> pd.DataFrame:
    """End the bars of estimates, and of losses without bound, where ``domain`` leaves room for words, which tell them.

    ``rows`` are those of :func:`marked`, ``domain`` is that of :func:`drop_domain`; ``extreme`` gets the words.
    """
    room = (domain[1] - domain[0]) * _ROOM_FOR_WORDS / (1 + _MARGIN + _ROOM_FOR_WORDS)
    ends = np.array([domain[0], domain[1] - room])
    outside = (rows["drop"] < ends[0]) | (rows["drop"] > ends[1])
    cut = outside & ((rows["source"] != "measured") | ~np.isfinite(rows["drop"]))
    if not cut.any():
        return rows
    arrows = np.where(rows["drop"] > 0, "▸ ", "◂ ")
    numbers = {name: rows[name].mask(cut, rows[name].clip(*ends)) for name in ("drop", "low", "high")}
    return rows.assign(**numbers, extreme=rows["extreme"].mask(cut, arrows + rows["change_text"]))


def _measured_if_any(rows: pd.DataFrame) -> pd.DataFrame:
    known = rows[rows["source"] == "measured"]
    return known if len(known) else rows


_DRAWN = (
    "row", "layer", "level_text", "drop", "low", "high", "unclear", "extreme", "source", "members", "change_text",
    "interval_text", "description", "band",
)  # fmt: skip


def sensitivity_bars(
    rows: pd.DataFrame, metric: Metric, *, x_domain: tuple[float, float], picked: str = "", is_log: bool = False
) -> alt.LayerChart:
    """Return one bar per row of :func:`marked`, in its order.

    Colour is the row's band (:mod:`senseapp.views.palette`); whiskers are the 95 % interval; a ring at zero
    marks bars that cannot be told from zero; estimated bars are pale, and those that leave the axis end with an arrow
    and their number; words mark the largest and the smallest. A click anywhere on a row picks its layer.
    ``x_domain`` is in display units; ``is_log`` makes the axis logarithmic beyond what is tolerable.
    """
    base: alt.Chart = alt.Chart(cut_short(rows[list(_DRAWN)], x_domain)).encode(y=axes.same_rows())
    log: dict[str, Any] = {"type": "symlog", "constant": metric.shown(metric.notable)} if is_log else {}
    scale = alt.Scale(domain=list(x_domain), nice=False, **log)
    drop = alt.X("drop:Q", title=metric.axis, scale=scale, axis=axes.top_axis(tickCount=8), stack=None)
    bars = base.mark_bar(clip=True, stroke=INK, strokeWidth=0.5).encode(
        x=drop,
        y=axes.layer_axis(list(rows["row"])),
        color=fragility_colour(),
        opacity=axes.source_opacity(),
        description=alt.Description("description:N"),
    )
    whiskers = base.mark_rule(color=INK, strokeWidth=1.5, clip=True, aria=False)
    rings = base.transform_filter("datum.unclear").mark_point(
        shape="circle", size=45, color=INK, strokeWidth=1.5, aria=False
    )
    hits = base.mark_rect(opacity=0, aria=False, tooltip=axes.layer_hover(metric))
    layers = [
        bars,
        whiskers.encode(x=alt.X("low:Q", scale=scale), x2=alt.X2("high:Q")),
        rings.encode(x=alt.XDatum(0, scale=scale)),
        _extremes(base, dx=8, end="max(0, datum.high, datum.drop)").encode(x=alt.X("end:Q", scale=scale)),
        axes.zero_line(),
        axes.outline(rows, picked, axes.same_rows()),
        # Nobody sees what answers to click and hover from edge to edge: many marks are too short to be hit, and one
        # with a hover text in each row is drawn faster than several. Unnamed, Altair prints its data for a name.
        hits.encode(**axes.EDGE_TO_EDGE).properties(name="hits").add_params(axes.pick_layer()),
    ]
    return axes.LayeredChart(layer=layers, **axes.rows_size(len(rows)))


def _extremes(base: alt.Chart, *, dx: int, end: str) -> Any:
    """Write ``extreme`` behind the ``end`` of each row that has one."""
    words = base.transform_filter("datum.extreme != ''").transform_calculate(end=end)
    text = words.mark_text(align="left", dx=dx, fontStyle="italic", aria=False)
    return text.encode(text=alt.Text("extreme:N"))


def schedule_bars(rows: pd.DataFrame, *, title: str, largest: float) -> alt.LayerChart:
    """Return one bar per row of :func:`senseapp.views.frames.results.schedule_frame`, coloured by the layer's own loss.

    Where a bar has no length, the reason stands in its place. ``largest`` is the end of the axis of amounts, fixed so
    that bars move and the axis does not.
    """
    base = alt.Chart(rows).encode(
        y=axes.layer_axis(list(rows["row"])),
        x=alt.X("amount:Q", title=title, axis=axes.top_axis(), scale=alt.Scale(domain=[0, largest], nice=False)),
        tooltip=axes.tooltips(members="Layer", amount_text="Amount", reason="Why", drop_text="Measured alone"),
    )
    bars = base.mark_bar(stroke=INK, strokeWidth=0.5).encode(color=fragility_colour(), description="description:N")
    words = base.transform_filter("datum.amount === 0").mark_text(align="left", dx=6, fontStyle="italic", aria=False)
    return alt.LayerChart(layer=[bars, words.encode(text="reason:N")], **axes.rows_size(len(rows)))


def pair_step(sides: int) -> int:
    """Return the height of a layer's row, in pixels: 9 for each bar, so that a pair takes little more, and a gap."""
    return sides * 9 + 6


def side_scale(labels: Sequence[str]) -> alt.Scale:
    """Return the colour of each side of a comparison, the same in every chart."""
    return alt.Scale(domain=list(labels), range=list(CATEGORIES[: len(labels)]))


def paired_bars(rows: pd.DataFrame, metric: Metric, *, labels: Sequence[str], picked: str = "") -> alt.LayerChart:
    """Return a bar for each side under each other, layer by layer; whiskers are 95 % intervals, estimates are pale.

    ``rows`` are those of :func:`senseapp.views.frames.comparison.pair_frame`, ``labels`` those of the sides in order.
    """
    low, high = drop_domain(rows, metric)
    domain = low, min(high, 100.0) if metric.is_share or metric.as_answers else high
    drawn = cut_short(rows.assign(extreme=""), domain)
    layers_shown = list(dict.fromkeys(rows["row"]))
    base: alt.Chart = alt.Chart(drawn).encode(
        y=axes.layer_axis(layers_shown),
        yOffset=alt.YOffset("side:N", sort=list(labels)),
        tooltip=axes.tooltips(
            members="Layer",
            side="Run",
            change_text=metric.change_title,
            interval_text="95 % interval",
            rank_text="Rank",
            source="Value",
        ),
    )
    scale = alt.Scale(domain=list(domain), nice=False)
    drop = alt.X("drop:Q", title=metric.axis, scale=scale, axis=axes.top_axis())
    hits = base.mark_rect(opacity=0, aria=False).encode(x=alt.value(0), x2=alt.value("width"))
    bars = base.mark_bar(clip=True).encode(
        x=drop,
        color=alt.Color("side:N", scale=side_scale(labels), legend=None),
        opacity=axes.source_opacity(),
        description="description:N",
    )
    layers = [
        hits.add_params(axes.pick_layer()),
        bars,
        base.mark_rule(color=INK, strokeWidth=1.5, clip=True, aria=False).encode(x="low:Q", x2="high:Q"),
        axes.zero_line(),
        axes.outline(rows, picked, axes.same_rows()),
    ]
    if (drawn["extreme"] != "").any():
        layers.append(_extremes(base, dx=4, end="max(0, datum.drop)").encode(x="end:Q"))
    return alt.LayerChart(layer=layers, **axes.rows_size(len(layers_shown), pair_step(len(labels))))


_SIZES = {"params_text": "Parameters", "macs_text": "Multiplications"}
_NAME_WIDTH, _SIZE_WIDTH = 180, 108  # pixels of the column of names, and of a column of sizes
_PLACE = alt.Y("node:N", axis=None)
_PLAIN: dict[str, Any] = {"labelOverlap": False, "labelFlush": False, "ticks": False, "domain": False}


def network_bars(
    rows: pd.DataFrame, metric: Metric, *, share_title: str, sizes: bool = True, picked: str = ""
) -> alt.LayerChart:
    """Return the visible tree, parents above their children, with parameters and MACs of each and their shares.

    ``rows`` are those of :func:`senseapp.views.frames.network.network_frame`; ``sizes`` says whether parameters
    and MACs are known. A click selects ``layer``, ``node`` and ``is_block`` of its row.
    """
    hover = [
        *axes.tooltips(members="Module", kind="Kind", change_text=metric.change_title, worst_text="Most fragile layer"),
        alt.Tooltip("params:Q", title="Parameters", format=",d"),
        alt.Tooltip("param_share:Q", title="of all layers", format=".1%"),
        alt.Tooltip("macs:Q", title="Multiplications", format=".3~s"),
        alt.Tooltip("mac_share:Q", title="of all layers ", format=".1%"),
    ]
    base: alt.Chart = alt.Chart(rows).encode(tooltip=hover)
    names = alt.Axis(
        title=None,
        labelExpr=_text_of_node(rows, "row"),
        labelAlign="left",
        labelPadding=_NAME_WIDTH,
        labelLimit=_NAME_WIDTH - 5,
        **_PLAIN,
    )
    click = alt.selection_point(name=axes.PICK, fields=["layer", "node", "is_block"], on="click")
    hits = base.mark_rect(opacity=0, aria=False).encode(y=_rows(rows, names), **axes.EDGE_TO_EDGE)
    bars = base.mark_bar(minBandSize=3, stroke=INK, strokeWidth=0.5).encode(
        y=_PLACE,
        x=alt.X("share:Q", title=share_title, axis=axes.top_axis(format="%", tickCount=4)),
        color=fragility_colour(),
        description=alt.Description("description:N"),
    )
    layers = [
        hits.properties(name="hits").add_params(click),
        *(
            base.mark_rect(opacity=0, aria=False).encode(y=_rows(rows, _size_axis(rows, field, title, number)))
            for number, (field, title) in enumerate(_SIZES.items() if sizes else ())
        ),
        bars,
        axes.outline(rows, picked, _PLACE, field="node"),
    ]
    tree = axes.LayeredChart(layer=layers, **axes.rows_size(len(rows))).resolve_axis(y="independent")
    return cast(alt.LayerChart, tree)


def _rows(rows: pd.DataFrame, axis: alt.Axis) -> alt.Y:
    return alt.Y("node:N", scale=alt.Scale(domain=tuple(rows["node"])), axis=axis)


def _size_axis(rows: pd.DataFrame, field: str, title: str, number: int) -> alt.Axis:
    """Write one column of sizes to the right of the bars."""
    return alt.Axis(
        orient="right",
        offset=number * _SIZE_WIDTH,
        title=title,
        titleAngle=0,
        titleAlign="right",
        titleAnchor="start",
        titleX=_SIZE_WIDTH,
        titleY=-14,
        labelExpr=_text_of_node(rows, field),
        labelAlign="right",
        labelPadding=_SIZE_WIDTH,
        **_PLAIN,
    )


def _text_of_node(rows: pd.DataFrame, field: str) -> str:
    """Return the expression by which Vega looks up the text of each node, by the node's whole name."""
    texts = {str(node): str(text) for node, text in zip(rows["node"], rows[field], strict=True)}
    return f"({json.dumps(texts)})[datum.label]"
