"""Colours that people with any colour vision can tell apart, and the one that a loss has in every view and run.

Source: blue, yellow and vermilion follow Okabe and Ito, "Color Universal Design" (2008), in the lightness that their
place from robust to fragile asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from senseapp.metrics import Metric
from senseapp.records.resolution import FRAGILITY_STEPS, band_of

if TYPE_CHECKING:
    import altair as alt

FRAGILITY = ("#B9DFF7", "#EBBB12", "#DB7B1B", "#C2431D", "#8F1D2C")
"""From robust to fragile: blue over yellow to red, each darker than the last, so that hues are not needed."""
SECOND = FRAGILITY[2]
"""Of what has an axis of its own on the right."""
UNCLEAR = "#9AA3AE"
"""Of what cannot be told to be robust or fragile."""
UNKNOWN = "transparent"

CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#7F7F7F")
CURVES = (*CATEGORIES, "#C0547A", "#44AA99", "#A0872B", "#5F78D6", "#B0413E", "#6AA84F", "#A64CA6", "#8A6242")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (12, 4))  # pixels drawn and left out; told apart at a width of 2
"""With the colours of curves they make 80 curves that all look different; more are told apart by pointing at them."""

ACCENT = "#2F7FC1"
TEXT = {"light": "#5B6170", "dark": "#B4BAC4"}
"""Of words and labels in charts: 6 : 1 on the background of the theme, light or dark, and more."""
INK = "#808895"
"""Whiskers, zero lines and marks: 3.6 : 1 on white, 5 : 1 on the dark background."""


def curve_look(index: int) -> tuple[str, tuple[int, ...]]:
    """Return colour and dashes of the curve of that number; numbers near each other differ in colour."""
    return CURVES[index % len(CURVES)], DASHES[index // len(CURVES) % len(DASHES)]


CANNOT_TELL = len(FRAGILITY)
NO_VALUE = CANNOT_TELL + 1
_COLOURS = (*FRAGILITY, UNCLEAR, UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A colour and its meaning."""

    color: str
    text: str


def row_bands(rows: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return 0 (tolerable) to 4 (fragile) by ``drop``; :data:`CANNOT_TELL` where the 95 % interval leaves that open.

    ``drop``, ``low`` and ``high`` are in display units; an estimate's ``low`` and ``high`` are its drop.
    """
    low, drop, high = (rows[name].to_numpy(dtype=float) for name in ("low", "drop", "high"))
    found = band_of(low, drop, high, metric.shown(metric.notable))
    return pd.Series(np.where(found < 0, CANNOT_TELL, found), index=rows.index, dtype="int64")


def fragility_colour() -> alt.Color:
    """Return the channel that paints the column ``band``; its legend stands beside the chart, always in sight."""
    import altair as alt  # the first page is drawn without

    scale = alt.Scale(domain=list(range(len(_COLOURS))), range=list(_COLOURS))
    return alt.Color("band:O", scale=scale, legend=None)


def fragility_legend(metric: Metric, *, no_value: bool = False) -> tuple[LegendEntry, ...]:
    """Return the meaning of the colours, the most robust first."""
    ends = [f"{metric.shown(metric.notable) * step:.3g}" for step in FRAGILITY_STEPS[1:]]
    limit = metric.limit_text(metric.notable) + ", hardly shows" * (metric.divergence and not metric.change_unit)
    texts = [
        f"Up to {limit} change" if metric.as_answers else f"{metric.change_title} up to {limit}",
        *(f"to {end}" for end in ends),
        "more",
        "too few images to say",
    ]
    if no_value:
        texts.append("no value")
    return tuple(LegendEntry(color=colour, text=text) for colour, text in zip(_COLOURS, texts, strict=False))
