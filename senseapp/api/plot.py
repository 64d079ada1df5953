"""The bar chart of one level, for a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import pandas as pd

if TYPE_CHECKING:
    from senseapp.api.level_result import LevelResult


def delta_bars(result: LevelResult) -> alt.Chart:
    """Return horizontal bars of ``delta``, blue for robust through yellow to red for fragile layers."""
    measured = [layer for layer in result.layers if layer.delta == layer.delta]
    rows = pd.DataFrame({"layer": [item.name for item in measured], "delta": [item.delta for item in measured]})
    title = f"Which layers are fragile? {result.level_text}"
    chart: alt.Chart = (
        alt.Chart(rows, title=title)
        .mark_bar()
        .encode(
            x=alt.X("delta:Q", title=f"drop in {result.metric_name}"),
            y=alt.Y("layer:N", sort=None, title=None, axis=alt.Axis(labelLimit=240, labelOverlap=False)),
            color=alt.Color("delta:Q", scale=alt.Scale(scheme="redyellowblue", reverse=True), legend=None),
            tooltip=["layer", alt.Tooltip("delta", format="+.4f")],
        )
        .properties(height=alt.Step(18))
    )
    return chart
