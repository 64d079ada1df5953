"""Colours that people with any colour vision can tell apart, on light and on dark.

Source: blue, yellow and vermilion follow Okabe and Ito, "Color Universal Design" (2008).
"""

from __future__ import annotations

import altair as alt

__all__ = [
    "ACCENT",
    "CATEGORIES",
    "CURVES",
    "DASHES",
    "FRAGILITY",
    "INK",
    "MUTED",
    "SHAPES",
    "curve_look",
    "fragility_scale",
]

FRAGILITY = ("#0072B2", "#56A3CF", "#E3C11F", "#E8851A", "#C2281D")
"""From robust to fragile."""

CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#7F7F7F")
CURVES = (*CATEGORIES, "#C0547A", "#44AA99", "#A0872B", "#5F78D6", "#B0413E", "#6AA84F", "#A64CA6", "#8A6242")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (12, 4))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
"""With the colours of curves and the dashes they make 560 curves that all look different."""

ACCENT = "#2F7FC1"
INK = "#808895"
"""Whiskers, zero lines and marks: 3.6 : 1 on white, 5 : 1 on the dark background."""
MUTED = "#9AA3AE"


def curve_look(index: int) -> tuple[str, tuple[int, ...], str]:
    """Return colour, dashes and point shape of the curve of that number; numbers near each other differ in colour."""
    dashes = index // len(CURVES)
    shapes = dashes // len(DASHES)
    return CURVES[index % len(CURVES)], DASHES[dashes % len(DASHES)], SHAPES[shapes % len(SHAPES)]


def fragility_scale(largest: float) -> alt.Scale:
    """Return the colour scale of drops from 0 (robust) to ``largest`` (fragile); what lies outside is clamped.

    Between its stops the scale is mixed in RGB: mixing hues would pass through green on its way to yellow.
    """
    steps = len(FRAGILITY) - 1
    domain = [largest * step / steps for step in range(steps + 1)]
    return alt.Scale(domain=domain, range=list(FRAGILITY), clamp=True, interpolate="rgb")
