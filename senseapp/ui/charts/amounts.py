"""Bars of a schedule: how much each layer is compressed."""

from __future__ import annotations

import altair as alt
import pandas as pd

from senseapp.ui.charts.axes import ROW_STEP, layer_axis
from senseapp.ui.fragility import fragility_colour
from senseapp.ui.palette import INK


def schedule_bars(rows: pd.DataFrame, *, title: str, largest: float) -> alt.Chart:
    """Return one bar per row of :func:`senseapp.ui.frames.schedule_frame`, coloured by what the layer loses alone.

    Args:
        rows: the layers in network order.
        title: of the amount axis, with its unit.
        largest: end of the amount axis, fixed so that bars move and the axis does not.
    """
    chart: alt.Chart = (
        alt.Chart(rows)
        .mark_bar(stroke=INK, strokeWidth=0.5)
        .encode(
            y=layer_axis(list(rows["row"])),
            x=alt.X(
                "amount:Q", title=title, axis=alt.Axis(orient="top"), scale=alt.Scale(domain=[0, largest], nice=False)
            ),
            color=fragility_colour(),
            tooltip=[
                alt.Tooltip("members:N", title="Layer"),
                alt.Tooltip("amount_text:N", title="Amount"),
                alt.Tooltip("drop_text:N", title="Measured alone"),
            ],
            description="description:N",
        )
        .properties(height=alt.Step(ROW_STEP))
    )
    return chart
