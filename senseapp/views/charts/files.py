"""A chart as a picture for slides and papers: on white, with its question and where its numbers come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from senseapp.views.charts.axes import chart_parts
from senseapp.views.palette import TEXT, LegendEntry

_WIDTH = 760
_PIXELS_PER_POINT = 2
LANGUAGE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
LOOK: dict[str, Any] = {
    "background": "white",
    "font": "Arial, Helvetica, Liberation Sans, sans-serif",
    "axis": {"labelColor": "#31333F", "titleColor": "#31333F", "gridColor": "#E6E8EC", "titleFontWeight": "normal"},
    "legend": {"labelColor": "#31333F", "titleColor": "#31333F", "titleFontWeight": "normal"},
    "text": {"color": TEXT["light"]},
    "view": {"stroke": None},
}


def picture_spec(
    chart: alt.TopLevelMixin, *, title: str, lines: Sequence[str] = (), legend: Sequence[LegendEntry] = ()
) -> dict[str, Any]:
    """Return the Vega-Lite specification of ``chart`` with its data, ``lines`` under its title and ``legend``."""
    spec: dict[str, Any] = _with_data_inside(chart).to_dict(validate=False)
    if legend:
        _add_legend(spec, legend)
    look = {**LOOK, **{key: value for key, value in spec.get("config", {}).items() if key not in LOOK}}
    heading = {"text": title, "subtitle": list(lines), "anchor": "start", "offset": 14, "fontSize": 15}
    return {
        **spec,
        "config": look,
        "title": heading | {"subtitleColor": "#5B6170", "subtitlePadding": 5},
        **({} if "concat" in spec else {"width": spec.get("width", _WIDTH)}),  # whose charts have their own
        "padding": 16,
    }


def _add_legend(spec: dict[str, Any], legend: Sequence[LegendEntry]) -> None:
    """Write the legend that stands beside the chart on the page into the channel that paints bands."""
    texts = json.dumps([entry.text for entry in legend], ensure_ascii=False)
    for part in (spec, *spec.get("layer", ())):
        colour = part.get("encoding", {}).get("color", {})
        if colour.get("field") == "band":
            colour["legend"] = {
                "orient": "bottom",
                "direction": "horizontal",
                "columns": 4,
                "title": None,
                "labelLimit": 220,
                "values": list(range(len(legend))),
                "labelExpr": f"{texts}[datum.value]",
                "symbolType": "square",
                "symbolOpacity": 1,
            }


def picture_svg(chart: alt.TopLevelMixin, **options: Any) -> str:
    """Return ``chart`` as a drawing that scales; ``options`` are those of :func:`picture_spec`."""
    return vl_convert.vegalite_to_svg(picture_spec(chart, **options), vl_version=LANGUAGE)


def picture_png(chart: alt.TopLevelMixin, **options: Any) -> bytes:
    """Return ``chart`` as an image of two pixels per point; ``options`` are those of :func:`picture_spec`."""
    return vl_convert.vegalite_to_png(picture_spec(chart, **options), vl_version=LANGUAGE, scale=_PIXELS_PER_POINT)


def drawn_rows(chart: alt.TopLevelMixin) -> pd.DataFrame:
    """Return the frame that ``chart`` draws; of several, the longest."""
    frames = [part.data for part in chart_parts(chart) if isinstance(part.data, pd.DataFrame)]
    return max(frames, key=len, default=pd.DataFrame())


def _with_data_inside(chart: Any) -> Any:
    """Copy ``chart`` with rows in place of frames.

    Altair would convert frames with whatever transformer the process has at the moment, and Streamlit exchanges it
    while it draws for somebody else.
    """
    copied = chart.copy()
    for part in chart_parts(copied):
        if isinstance(part.data, pd.DataFrame):
            part.data = alt.InlineData(values=json.loads(part.data.to_json(orient="records", double_precision=15)))
    return copied
