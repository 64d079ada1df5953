"""Layers of marks in one chart."""

from __future__ import annotations

from typing import Any

import altair as alt
from altair.utils.schemapi import disable_debug_mode

__all__ = ["LayeredChart"]


disable_debug_mode()  # or else every part of a chart is checked while it is built, too


class LayeredChart(alt.LayerChart):
    """Altair's own, but it does not check itself against the schema each time it is drawn.

    That takes half of the time of a click; our tests check every chart instead.
    """

    def to_dict(self, validate: bool = False, **options: Any) -> dict[str, Any]:
        """Return the Vega-Lite specification."""
        found: dict[str, Any] = super().to_dict(validate, **options)
        return found
