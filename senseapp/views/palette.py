"""Colours that people with any colour vision can tell apart, on light and on dark.

Source: blue, yellow and vermilion follow Okabe and Ito, "Color Universal Design" (2008), in the lightness that their
place from robust to fragile asks for.
"""

from __future__ import annotations

FRAGILITY = ("#B9DFF7", "#EBBB12", "#DB7B1B", "#C2431D", "#8F1D2C")
"""From robust to fragile: blue over yellow to red, each darker than the last, so that hues are not needed."""
SECOND = FRAGILITY[2]
"""Of what has an axis of its own on the right."""
UNCLEAR = "#9AA3AE"
"""Of what cannot be told to be robust or fragile."""
UNKNOWN = "transparent"

CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#7F7F7F")
CURVES = (*CATEGORIES, "#C0547A", "#44AA99", "#A0872B", "#5F78D6", "#B0413E", "#6AA84F", "#A64CA6", "#8A6242")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (12, 4))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
"""With the colours of curves and the dashes they make 560 curves that all look different."""

ACCENT = "#2F7FC1"
TEXT = {"light": "#5B6170", "dark": "#B4BAC4"}
"""Of words and labels in charts: 6 : 1 on the background of the theme, light or dark, and more."""
INK = "#808895"
"""Whiskers, zero lines and marks: 3.6 : 1 on white, 5 : 1 on the dark background."""


def curve_look(index: int) -> tuple[str, tuple[int, ...], str]:
    """Return colour, dashes and point shape of the curve of that number; numbers near each other differ in colour."""
    dashes = index // len(CURVES)
    shapes = dashes // len(DASHES)
    return CURVES[index % len(CURVES)], DASHES[dashes % len(DASHES)], SHAPES[shapes % len(SHAPES)]
