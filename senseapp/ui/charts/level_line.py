"""One level as a line: the metric itself over all layers, with its best and worst marked."""

from __future__ import annotations

import altair as alt
import pandas as pd

from senseapp.metrics import Metric
from senseapp.ui.charts.axes import CUT_LABEL, layer_tooltip, measured_ends, pick_layer
from senseapp.ui.charts.layered import LayeredChart
from senseapp.ui.palette import ACCENT, FRAGILITY, INK

_MOST_NAMES = 40


def level_line(rows: pd.DataFrame, metric: Metric, *, baseline: float | None, picked: str = "") -> alt.LayerChart:
    """Return the metric of the network with each layer compressed alone, layers from left to right.

    Args:
        rows: of :func:`senseapp.ui.level_frames.marked`, in the order to be drawn.
        metric: whose value it is.
        baseline: of the uncompressed model, in display units, drawn as a dashed line; None leaves it out.
        picked: the layer whose point is large.
    """
    names = list(rows["row"])
    labels = len(names) <= _MOST_NAMES
    axis = alt.Axis(
        labels=labels, ticks=labels, labelAngle=-40, labelExpr=CUT_LABEL, labelLimit=150, labelOverlap=False
    )
    title = None if labels else "Layers, from left to right as chosen above"
    base: alt.Chart = alt.Chart(rows.assign(place=range(len(names)))).encode(
        x=alt.X("row:N", sort=names, title=title, axis=axis),
        y=alt.Y("value:Q", title=metric.value_axis, scale=alt.Scale(zero=False, **measured_ends(rows, "value"))),
    )
    line = base.mark_line(color=ACCENT, strokeWidth=1.5, clip=True, aria=False)
    points = base.mark_point(filled=True, color=ACCENT, clip=True).encode(
        size=alt.condition(alt.datum["layer"] == picked, alt.value(180), alt.value(45)),
        tooltip=[alt.Tooltip("value:Q", title=metric.value_axis, format=".4~g"), *layer_tooltip(metric)],
        description="description:N",
    )
    layers: list[alt.Chart] = [line, points.add_params(pick_layer(nearest=True)), *_extremes(base, len(names))]
    if baseline is not None:
        rule = alt.Chart(pd.DataFrame({"value": [baseline]})).mark_rule(color=INK, strokeDash=[5, 4], aria=False)
        layers.insert(0, rule.encode(y="value:Q"))
    return LayeredChart(layer=layers, height=380)


def _extremes(base: alt.Chart, layers: int) -> tuple[alt.Chart, alt.Chart]:
    """Ring the ends, and write their names towards the middle of the chart."""
    ends = base.transform_filter("datum.extreme != ''")
    colour = alt.condition("datum.extreme == 'loses most'", alt.value(FRAGILITY[3]), alt.value(ACCENT))
    left = f"datum.place < {layers / 2}"
    words = ends.transform_calculate(label="datum.layer + ': ' + datum.change_text").mark_text(
        align=alt.expr(f"{left} ? 'left' : 'right'"),
        dx=alt.expr(f"{left} ? 12 : -12"),
        aria=False,
        limit=260,
    )
    return (
        ends.mark_point(size=150, strokeWidth=2.5, aria=False).encode(color=colour),
        words.encode(text="label:N", color=colour),
    )
