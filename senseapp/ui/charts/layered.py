"""Layers of marks in one chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from senseapp.compat.altair_internals import build_unchecked

build_unchecked()


class LayeredChart(alt.LayerChart):
    """Altair's own, but quicker to draw.

    It does not check itself against the schema each time, which takes half of the time of a click; our tests check
    every chart instead. And data that several layers share are the whole chart's, which converts them once.
    """

    def __init__(self, data: Any = alt.Undefined, layer: Sequence[Any] = (), **options: Any) -> None:
        """Take layers that have data of their own, each."""
        if data is alt.Undefined and layer:
            data = max(layer, key=lambda each: sum(each.data is other.data for other in layer)).data
            layer = [_without(data, each) for each in layer]
        super().__init__(data=data, layer=layer, **options)

    def to_dict(self, validate: bool = False, **options: Any) -> dict[str, Any]:
        """Return the Vega-Lite specification."""
        found: dict[str, Any] = super().to_dict(validate, **options)
        return found


def _without(data: Any, layer: Any) -> Any:
    if layer.data is not data:
        return layer
    shared = layer.copy(deep=False)
    shared.data = alt.Undefined
    return shared
