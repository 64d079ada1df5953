"""What all layer charts share: rows of fixed height, names cut in the middle, tooltips, the click on a row."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from senseapp.ui.palette import INK
from senseapp.ui.vocabulary import MetricView

__all__ = [
    "CUT_LABEL",
    "PICK",
    "ROW_STEP",
    "layer_axis",
    "layer_tooltip",
    "pick_layer",
    "picked_outline",
    "source_opacity",
    "zero_line",
]

ROW_STEP = 18
PICK = "pick"
_NAME_WIDTH = 26
_HEAD = (_NAME_WIDTH - 1) // 2
_TAIL = _NAME_WIDTH - 1 - _HEAD
CUT_LABEL = (
    f"length(datum.label) > {_NAME_WIDTH} ? substring(datum.label, 0, {_HEAD}) + '…' + "
    f"substring(datum.label, length(datum.label) - {_TAIL}) : datum.label"
)


def layer_axis(rows: list[str], *, field: str = "row") -> alt.Y:
    """Return the y channel: one row per layer in the order of ``rows``, every name shown, cut in the middle."""
    axis = alt.Axis(
        title=None,
        labelOverlap=False,
        labelLimit=220,
        labelExpr=CUT_LABEL,
        ticks=False,
        domain=False,
        labelFlush=False,
    )
    return alt.Y(f"{field}:N", sort=rows, axis=axis)


def layer_tooltip(metric: MetricView) -> list[alt.Tooltip]:
    """Return the hover text of a measurement: the whole name, the change, its interval, where it comes from."""
    return [
        alt.Tooltip("members:N", title="Layer"),
        alt.Tooltip("level_text:N", title="Level"),
        alt.Tooltip("change_text:N", title=metric.label),
        alt.Tooltip("interval_text:N", title="95 % interval"),
        alt.Tooltip("source:N", title="Value"),
    ]


def pick_layer(*, nearest: bool = False) -> alt.Parameter:
    """Return the selection that a click on a layer makes: ``event["selection"]["pick"][0]["layer"]``.

    ``nearest`` takes the mark nearest to the click, for marks that are hard to hit.
    """
    return alt.selection_point(name=PICK, fields=["layer"], on="click", nearest=nearest)


def picked_outline(picked: str) -> dict[str, Any]:
    """Return the stroke width of a mark: 2 for the picked layer, 0 for all others."""
    return dict(alt.condition(alt.datum["layer"] == picked, alt.value(2), alt.value(0)))


def zero_line(*, vertical: bool = True) -> alt.Chart:
    """Return a rule at zero of the value axis."""
    rule = alt.Chart(pd.DataFrame({"zero": [0.0]})).mark_rule(color=INK, aria=False)
    line: alt.Chart = rule.encode(x="zero:Q") if vertical else rule.encode(y="zero:Q")
    return line


def source_opacity() -> alt.Opacity:
    """Return the channel that draws measured marks solid and estimated ones pale."""
    scale = alt.Scale(domain=["measured", "estimated"], range=[1.0, 0.4])
    return alt.Opacity("source:N", scale=scale, legend=None)
