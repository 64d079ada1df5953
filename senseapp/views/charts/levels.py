"""All levels at once: a curve for each layer, the metric over all layers at one level, and the heat map."""

from collections.abc import Sequence
from typing import Any, cast

import altair as alt
import numpy as np
import pandas as pd

from senseapp.descriptions import LevelScale
from senseapp.metrics import Metric
from senseapp.views.charts import axes
from senseapp.views.palette import curve_look, fragility_colour

HOVER = "hover"
_MANY = 40  # curves, from which lines are thin and points small
_MOST_TICKS = 12  # levels with a tick each; more would overlap


def curve_rows(rows: pd.DataFrame, scale: LevelScale) -> pd.DataFrame:
    """Add ``place``, the level in people's unit of ``scale``, to rows of a measurement frame."""
    return rows.assign(place=(rows["level"] * scale.per_level).round(6))


def sensitivity_curves(
    rows: pd.DataFrame,
    *,
    all_layers: Sequence[str],
    x_title: str,
    y_title: str | None,
    picked: str = "",
    falling: bool = False,
    height: int = 400,
    y_domain: tuple[float, float] | None = None,
) -> alt.LayerChart:
    """Return one line per layer over the levels, the strongest compression on the right.

    A layer has its own colour and dashes in the whole run. Up to 20 curves are named beside the chart, up
    to 8 have their interval as a band; pointing at a curve pales the others, and that of the ``picked`` layer is thick.

    Args:
        rows: of :func:`curve_rows`, for the layers to be drawn.
        all_layers: values of ``row`` of the whole run, in network order.
        x_title: of the axis of levels.
        y_title: of the value axis; None leaves it out.
        picked: a ``layer`` of ``rows``, or empty.
        falling: whether levels fall to the right, as bits do.
        height: in pixels.
        y_domain: ends of the value axis, which curves of estimates may leave; None for all of them.
    """
    looks = {name: curve_look(index) for index, name in enumerate(all_layers)}
    present = set(rows["row"])
    drawn = [name for name in all_layers if name in present]
    named = _legend(drawn) if 1 < len(drawn) <= 20 else None  # entries of a legend as high as the chart
    colours, dashes = (alt.Scale(domain=drawn, range=[looks[name][part] for name in drawn]) for part in range(2))
    base: alt.Chart = alt.Chart(rows).encode(x=_levels(rows, x_title, falling))
    tinted = base.encode(color=alt.Color("row:N", scale=colours, legend=None))
    ends: dict[str, Any] = {"domain": list(y_domain), "nice": False} if y_domain else {}
    value = alt.Y("drop:Q", title=y_title, scale=axes.value_scale(y_title, **ends))
    lines = _lines(base, value, many=len(drawn) > _MANY, picked=picked).encode(
        stroke=alt.Stroke("row:N", scale=colours, legend=named),
        strokeDash=alt.StrokeDash("row:N", scale=dashes, legend=named),
    )
    points = _points(tinted, value, y_title, many=len(drawn) > _MANY)
    layers = [axes.zero_line(vertical=False)]
    if len(drawn) <= 8:  # intervals of curves, which hide each other beyond
        bands = tinted.mark_area(opacity=0.12, clip=True, aria=False)
        layers.append(bands.encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q")))
    whole = axes.LayeredChart(layer=[*layers, lines, points], height=height)
    # Each layer has a legend of its own or none: a shared one would take the paleness of the bands.
    channels: dict[str, Any] = dict.fromkeys(("color", "stroke", "strokeDash"), "independent")
    return cast(alt.LayerChart, whole.resolve_legend(**channels))


def _levels(rows: pd.DataFrame, title: str, falling: bool) -> alt.X:
    places = sorted(set(rows["place"]))
    ticks: dict[str, Any] = {"values": places} if len(places) <= _MOST_TICKS else {}
    return alt.X(
        "place:Q",
        title=title,
        axis=alt.Axis(grid=False, labelFlush=False, format=".4~g", **ticks),
        scale=alt.Scale(zero=False, nice=False, padding=14, reverse=falling),
    )


def _legend(drawn: Sequence[str]) -> alt.Legend:
    return alt.Legend(
        title=None,
        orient="right",
        values=list(drawn),
        labelLimit=190,
        labelExpr=axes.cut_labels(drawn),
        symbolType="stroke",
        symbolSize=500,
        symbolOpacity=1,
        symbolStrokeWidth=2,
    )


def _under_pointer(*, others: float) -> alt.OpacityValue:
    return alt.OpacityValue(**alt.condition({"param": HOVER}, alt.value(1.0), alt.value(others)))


def _lines(base: alt.Chart, value: alt.Y, *, many: bool, picked: str) -> Any:
    width = 1.2 if many else 2.0
    thick = alt.condition(alt.datum["layer"] == picked, alt.value(2.4 * width), alt.value(width))
    return base.mark_line(aria=False, clip=True).encode(
        y=value,
        detail=alt.Detail("layer:N"),
        opacity=_under_pointer(others=0.08 if many else 0.15),
        strokeWidth=alt.StrokeWidthValue(**thick),
    )


def _points(base: alt.Chart, value: alt.Y, y_title: str | None, *, many: bool) -> Any:
    hover = alt.selection_point(name=HOVER, fields=["layer"], on="pointerover", clear="pointerout", nearest=True)
    points = base.mark_point(filled=True, size=18 if many else 55, clip=True).properties(name="points")
    points = points.add_params(hover, axes.pick_layer(nearest=True))
    return points.encode(
        y=value,
        opacity=_under_pointer(others=0.05 if many else 0.15),
        tooltip=axes.tooltips(
            members="Layer",
            level_text="Level",
            change_text=(y_title or "Drop").split(" (")[0],
            interval_text="95 % interval of the drop",
            source="Value",
        ),
        description=alt.Description("description:N"),
    )


def sensitivity_heatmap(
    rows: pd.DataFrame, metric: Metric, *, order: Sequence[str], level_texts: Sequence[str], picked: str = ""
) -> alt.LayerChart:
    """Return a grid of layers and levels, coloured like the bars; a ring marks cells not told from zero.

    ``rows`` are all of :func:`senseapp.views.frames.results.measurement_frame`, ``order`` their ``row`` from top to
    bottom.
    """
    scale, axis = alt.Scale(domain=list(level_texts)), alt.Axis(orient="top", labelAngle=0, labelPadding=6)
    x = alt.X("level_text:O", scale=scale, title=None, axis=axis)
    rows = rows[np.isfinite(rows["drop"])]
    cells = alt.Chart(rows[list(_DRAWN)]).mark_rect(tooltip=axes.layer_hover(metric), invalid=None)
    cells = cells.encode(
        y=axes.layer_axis(list(order)),
        x=x,
        color=fragility_colour(),
        **({"opacity": axes.source_opacity()} if (rows["source"] == "estimated").any() else {}),
        description=alt.Description("description:N"),
    )
    rings = alt.Chart(rows.loc[rows["unclear"].astype(bool), ["layer", "row", "level_text"]])
    rings = rings.mark_point(size=30, filled=True, color="white", stroke="#333333", strokeWidth=1, aria=False)
    layers = [
        cells.properties(name="cells").add_params(axes.pick_layer()),
        rings.encode(y=axes.same_rows(), x=x),
        axes.outline(rows, picked, axes.same_rows()),
    ]
    return axes.LayeredChart(layer=layers, **axes.rows_size(len(order)))


_DRAWN = ("layer", "row", "members", "level_text", "band", "source", "change_text", "interval_text", "description")
