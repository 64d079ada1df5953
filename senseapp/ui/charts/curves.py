"""Curves: what each layer loses as compression grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from senseapp.ui.charts.axes import layer_tooltip, pick_layer, zero_line
from senseapp.ui.palette import CATEGORIES
from senseapp.ui.vocabulary import MetricView

__all__ = ["HOVER", "sensitivity_curves"]

HOVER = "hover"
_MOST_BANDS = 8


def sensitivity_curves(
    rows: pd.DataFrame,
    metric: MetricView,
    *,
    all_layers: Sequence[str],
    level_texts: Sequence[str],
    picked: str = "",
    height: int = 380,
    y_title: str | None = "",
) -> alt.LayerChart:
    """Return one line per layer over the levels, the strongest compression on the right.

    Args:
        rows: rows of :func:`senseapp.ui.frames.measurement_frame` for the layers to be drawn.
        metric: whose drop it is.
        all_layers: every layer of the run, so that a layer keeps its colour whatever is selected.
        level_texts: the levels in the order of the axis.
        picked: the layer whose points are larger.
        height: in pixels.
        y_title: of the value axis; empty takes the metric's, None leaves it out.
    """
    base: alt.Chart = alt.Chart(rows).encode(
        x=alt.X("level_text:O", sort=list(level_texts), title="Compression level", axis=alt.Axis(labelAngle=0)),
        color=alt.Color("row:N", scale=_colours(all_layers), legend=None),
    )
    title = metric.axis if y_title == "" else y_title
    drop = alt.Y("drop:Q", title=title)
    layers = [zero_line(vertical=False), _lines(base, drop), _points(base, drop, metric, picked)]
    if rows["row"].nunique() <= _MOST_BANDS:
        band = base.mark_area(opacity=0.12, aria=False).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
        layers.insert(0, band)
    return alt.LayerChart(layer=layers, height=height)


def _colours(all_layers: Sequence[str]) -> alt.Scale:
    names = list(all_layers)
    return alt.Scale(domain=names, range=[CATEGORIES[index % len(CATEGORIES)] for index in range(len(names))])


def _under_pointer() -> dict[str, Any]:
    return dict(alt.condition({"param": HOVER}, alt.value(1.0), alt.value(0.25)))


def _lines(base: alt.Chart, drop: alt.Y) -> alt.Chart:
    lines: alt.Chart = base.mark_line(strokeWidth=2, aria=False).encode(
        y=drop, detail="layer:N", opacity=_under_pointer()
    )
    return lines.add_params(alt.selection_point(name=HOVER, fields=["layer"], on="pointerover"))


def _points(base: alt.Chart, drop: alt.Y, metric: MetricView, picked: str) -> alt.Chart:
    points: alt.Chart = base.mark_point(filled=True).encode(
        y=drop,
        opacity=_under_pointer(),
        size=alt.condition(alt.datum["layer"] == picked, alt.value(160), alt.value(60)),
        tooltip=layer_tooltip(metric),
        description="description:N",
    )
    return points.add_params(pick_layer())
