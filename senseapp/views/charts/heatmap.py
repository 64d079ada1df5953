"""Heat map: every layer at every level in one picture."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from senseapp.metrics import Metric
from senseapp.views.charts.axes import (
    ROW_STEP,
    LayeredChart,
    layer_axis,
    layer_hover,
    outline,
    pick_layer,
    same_rows,
    source_opacity,
)
from senseapp.views.frames.fragility import fragility_colour

_DRAWN = ("level_text", "band", "source", "change_text", "interval_text")
_MOST_DESCRIBED = 2000
"""Streamlit draws more marks than these on a canvas."""


def sensitivity_heatmap(
    rows: pd.DataFrame, metric: Metric, *, order: Sequence[str], level_texts: Sequence[str], picked: str = ""
) -> alt.LayerChart:
    """Return a grid of layers and levels, coloured like the bars; a ring marks cells not told from zero.

    ``rows`` are all of :func:`senseapp.views.frames.results.measurement_frame`, ``order`` their ``row`` from top to
    bottom.
    """
    scale, axis = alt.Scale(domain=list(level_texts)), alt.Axis(orient="top", labelAngle=0)
    x = alt.X("level_text:O", scale=scale, title=None, axis=axis)
    rows = rows[np.isfinite(rows["drop"])]
    row, members = (_lean(rows, column) for column in ("row", "members"))
    described = _described(rows)
    drawn = rows[list(dict.fromkeys(["layer", row, members, *_DRAWN, *described]))]
    # Vega would put words together for every cell that has none, and a canvas has no place for them.
    hover = layer_hover(metric, members=members)
    cells = alt.Chart(drawn).mark_rect(tooltip=hover, invalid=None, aria=bool(described))
    cells = cells.encode(
        y=layer_axis(list(order), field=row),
        x=x,
        color=fragility_colour(),
        **({"opacity": source_opacity()} if (rows["source"] == "estimated").any() else {}),
        **{name: alt.Description(f"{name}:N") for name in described},
    )
    rings = alt.Chart(drawn.loc[rows["unclear"].astype(bool), list(dict.fromkeys(["layer", row, "level_text"]))])
    rings = rings.mark_point(size=30, filled=True, color="white", stroke="#333333", strokeWidth=1, aria=False)
    layers = [
        cells.properties(name="cells").add_params(pick_layer()),
        rings.encode(y=same_rows(field=row), x=x),
        outline(rows, picked, same_rows(field=row), field=row),
    ]
    return LayeredChart(layer=layers, height=alt.Step(ROW_STEP))


def _lean(rows: pd.DataFrame, column: str) -> str:
    """Return ``layer`` for a column that says the same, as without coupled groups: browsers read every column."""
    return "layer" if (rows[column] == rows["layer"]).all() else column


def _described(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the column with each cell in words, unless there are so many cells that browsers get them as one image."""
    return ("description",) if len(rows) <= _MOST_DESCRIBED else ()
