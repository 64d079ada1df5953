"""Heat map: every layer at every level in one picture."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from senseapp.ui.charts.axes import ROW_STEP, layer_axis, layer_tooltip, pick_layer, picked_outline, source_opacity
from senseapp.ui.charts.layered import LayeredChart
from senseapp.ui.palette import INK, fragility_scale
from senseapp.ui.vocabulary import MetricView

__all__ = ["sensitivity_heatmap"]


def sensitivity_heatmap(
    rows: pd.DataFrame, metric: MetricView, *, order: Sequence[str], level_texts: Sequence[str], picked: str = ""
) -> alt.LayerChart:
    """Return a grid of layers and levels, coloured like the bars; a ring marks cells not told from zero.

    Args:
        rows: all rows of :func:`senseapp.ui.frames.measurement_frame`.
        metric: whose drop it is.
        order: values of ``row`` from top to bottom.
        level_texts: the levels from left to right.
        picked: the layer to outline.
    """
    largest = max(float(rows["drop"].max()), metric.factor * metric.notable)
    levels = alt.X("level_text:O", sort=list(level_texts), title=None, axis=alt.Axis(orient="top", labelAngle=0))
    base: alt.Chart = alt.Chart(rows).encode(y=layer_axis(list(order)), x=levels)
    legend = alt.Legend(title=metric.axis, orient="bottom", gradientLength=260, titleLimit=320, format=".3~g")
    cells: alt.Chart = base.mark_rect(stroke=INK).encode(
        color=alt.Color("drop:Q", scale=fragility_scale(largest), legend=legend),
        strokeWidth=picked_outline(picked),
        opacity=source_opacity(),
        tooltip=layer_tooltip(metric),
        description="description:N",
    )
    rings = base.transform_filter("datum.unclear").mark_point(
        size=30, filled=True, color="white", stroke="#333333", strokeWidth=1, aria=False
    )
    return LayeredChart(layer=[cells.add_params(pick_layer()), rings], height=alt.Step(ROW_STEP))
