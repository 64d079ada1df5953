"""How well whole compressed models do against what is saved: a level for each layer, and the same level for all."""

from __future__ import annotations

import altair as alt
import pandas as pd

from senseapp.views.charts.axes import value_scale
from senseapp.views.frames.recommended import OURS, UNIFORM
from senseapp.views.palette import ACCENT, CATEGORIES, INK

_COLOURS = {OURS: ACCENT, UNIFORM: CATEGORIES[1]}
_HEIGHT = 230


def recommended_chart(
    rows: pd.DataFrame, *, before: float, x_title: str, y_title: str, falling: bool
) -> alt.LayerChart:
    """Return a line with dots for each kind of schedule, and a large mark with its interval where one was proven.

    Args:
        rows: of :func:`senseapp.views.frames.recommended.recommended_frame`.
        before: what the uncompressed model does, drawn as a dashed line.
        x_title: of the axis of savings.
        y_title: of the axis of what the model does.
        falling: whether less is more saved, as with bits; the axis then runs from right to left.
    """
    names = [name for name in _COLOURS if name in set(rows["source"])]
    colour = alt.Color(
        "source:N",
        scale=alt.Scale(domain=names, range=[_COLOURS[name] for name in names]),
        legend=alt.Legend(title=None, orient="top", columns=1, symbolStrokeWidth=0),
    )
    base = alt.Chart(rows).encode(
        x=alt.X("figure:Q", title=x_title, scale=alt.Scale(zero=False, reverse=falling)),
        y=alt.Y("value:Q", title=y_title, scale=value_scale(y_title, zero=False, clamp=True)),
        color=colour,
    )
    dashes = alt.Chart(pd.DataFrame({"before": [before]})).mark_rule(color=INK, strokeDash=[4, 4], aria=False)
    told = {"tooltip": alt.Tooltip("description:N", title="Measured"), "description": alt.Description("description:N")}
    tried, proven = base.transform_filter("!datum.proven"), base.transform_filter("datum.proven")
    return alt.LayerChart(
        layer=[
            dashes.encode(y="before:Q"),
            tried.mark_line(strokeWidth=2, aria=False),
            tried.mark_point(filled=True, size=40, opacity=1).encode(**told),
            proven.mark_rule(strokeWidth=2, aria=False).encode(y="low:Q", y2="high:Q"),
            proven.mark_point(filled=True, size=170, opacity=1, shape="diamond", stroke=INK).encode(**told),
        ],
        height=_HEIGHT,
    )
