"""Files that can be delivered: what they still answer against their size or their time."""

from __future__ import annotations

from typing import Literal

import altair as alt
import pandas as pd

from senseapp.views.charts.axes import PICK, value_scale
from senseapp.views.palette import ACCENT, CATEGORIES, INK

_HEIGHT = 230
_AXES = {"megabytes": "Size on disk (MB)", "milliseconds": "Time of a call here (ms)"}


def _above(title: str) -> alt.Axis:
    """Return a vertical axis whose title stands above it: beside it, a low chart would cut it."""
    return alt.Axis(title=title, titleAngle=0, titleAlign="left", titleBaseline="bottom", titleX=-36, titleY=-8)


def candidates_chart(
    rows: pd.DataFrame,
    *,
    against: Literal["megabytes", "milliseconds"],
    y_title: str,
    originals: pd.DataFrame,
    picked: str = "",
    picks: bool = True,
) -> alt.LayerChart:
    """Return a dot with its 95 % interval for each file; what another file beats is pale.

    Args:
        rows: of :func:`senseapp.views.frames.candidates.candidates_frame`.
        against: column of the horizontal axis.
        y_title: of the vertical axis.
        originals: rows of uncompressed networks, with ``against``, ``value`` and ``description``.
        picked: ``file`` of the one that is chosen, drawn larger.
        picks: whether a click chooses a file.
    """
    runs = list(dict.fromkeys(rows["run"]))
    shown = rows.assign(
        pale=[0.35 if beaten else 1.0 for beaten in rows["beaten"]],
        area=[260 if file == picked else 110 for file in rows["file"]],
    )
    colour = alt.Color(
        "run:N",
        scale=alt.Scale(domain=runs, range=[ACCENT, *CATEGORIES][: max(1, len(runs))]),
        legend=alt.Legend(title=None, orient="top", columns=1) if len(runs) > 1 else None,
    )
    base = alt.Chart(shown).encode(
        x=alt.X(f"{against}:Q", title=_AXES[against], scale=alt.Scale(zero=True)),
        y=alt.Y("value:Q", axis=_above(y_title), scale=value_scale(y_title, zero=False, clamp=True)),
        color=colour,
        opacity=alt.Opacity("pale:Q", scale=None, legend=None),
    )
    dots = base.mark_point(filled=True, stroke=INK).encode(
        size=alt.Size("area:Q", scale=None, legend=None),
        tooltip=alt.Tooltip("description:N", title="Measured"),
        description=alt.Description("description:N"),
    )
    if picks:
        dots = dots.add_params(alt.selection_point(name=PICK, fields=["file"]))
    original = (
        alt.Chart(originals)
        .mark_point(shape="cross", size=120, color=INK, filled=True)
        .encode(
            x=f"{against}:Q",
            y="value:Q",
            tooltip=alt.Tooltip("description:N", title="Original"),
            description=alt.Description("description:N"),
        )
    )
    intervals = base.mark_rule(strokeWidth=2, aria=False).encode(y="low:Q", y2="high:Q")
    return alt.LayerChart(layer=[intervals, dots, original], height=_HEIGHT)
