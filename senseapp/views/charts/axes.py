"""Common parts of layer charts: axes, tooltips, selections, marks, quick layered charts, and pictures for slides.

Channels are objects in charts of many rows: Altair takes milliseconds to find out what a text or a dictionary means.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import altair as alt
import pandas as pd
import vl_convert

from senseapp.compat.altair_internals import build_unchecked
from senseapp.core.texts import csv_text
from senseapp.metrics import Metric
from senseapp.views.palette import INK, TEXT, LegendEntry
from senseapp.views.words import format as fmt

ROW_STEP = 18  # pixels: a line of text in 11 points with space around it
AXIS_HEIGHT = 33  # pixels above the first row of a chart with :func:`top_axis`
EDGE_TO_EDGE: dict[str, Any] = {
    "x": alt.XValue(0),  # type: ignore[no-untyped-call]
    "x2": alt.X2Value("width"),  # type: ignore[no-untyped-call]
}
"""Channels of marks that are as wide as the chart."""
PICK = "pick"
_NAME_WIDTH = 26  # characters of a name before bars; longer ones would take half of a narrow chart


def cut_labels(names: Iterable[str]) -> str:
    """Return the expression of an axis or a legend that shows long ones among ``names`` cut, and no two alike."""
    cut = {name: text for name, text in fmt.distinct_names(names, _NAME_WIDTH).items() if text != name}
    return f"({json.dumps(cut)})[datum.label] || datum.label" if cut else "datum.label"


def layer_axis(rows: list[str]) -> alt.Y:
    """Return the y channel: one row per layer in the order of ``rows``, every name shown, long ones cut.

    The order is the scale's domain: a sort would make the browser look for the place of each mark in all names.
    """
    axis = alt.Axis(
        title=None,
        labelOverlap=False,
        labelLimit=0,  # in large type, a limit would cut the ends of names
        labelExpr=cut_labels(rows),
        ticks=False,
        domain=False,
        labelFlush=False,
    )
    return alt.Y("row:N", scale=alt.Scale(domain=tuple(rows)), axis=axis)


def rows_size(rows: int, step: int = ROW_STEP) -> dict[str, Any]:
    """Return the arguments of a chart of ``rows`` of ``step`` pixels: its height, and that it fits its place in width.

    Streamlit's theme fits charts both ways, and Vega warns of each whose height is a step.
    """
    return {"height": step * max(1, rows), "autosize": alt.AutoSizeParams(type="fit-x", contains="padding")}


def top_axis(**options: Any) -> alt.Axis:
    """Return the axis above charts of rows, :data:`AXIS_HEIGHT` high with its title."""
    return alt.Axis(orient="top", titlePadding=4, labelPadding=2, **options)


def same_rows() -> alt.Y:
    """Return the y channel of further marks in the rows that :func:`layer_axis` lays out."""
    return alt.Y("row:N", title=None)


def tooltips(**titles: str) -> list[alt.Tooltip]:
    """Return a line of hover text for each column of texts, with its title."""
    return [alt.Tooltip(f"{column}:N", title=title) for column, title in titles.items()]


def layer_hover(metric: Metric) -> alt.ExprRef:
    """Return the hover text of a measurement: the whole name, the change, its interval, where it comes from.

    It is one expression: Vega tests each value of a list of tooltips for being text or missing.
    """
    lines = {
        "members": "Layer",
        "level_text": "Level",
        "change_text": metric.change_title,
        "interval_text": "95 % interval",
        "source": "Value",
    }
    return alt.ExprRef("{" + ", ".join(f"{json.dumps(title)}: datum.{name}" for name, title in lines.items()) + "}")


def pick_layer(*, nearest: bool = False) -> alt.Parameter:
    """Return the selection that a click on a layer makes: ``event["selection"]["pick"][0]["layer"]``.

    ``nearest`` takes the mark nearest to the click, for marks that are hard to hit.
    """
    return alt.selection_point(name=PICK, fields=["layer"], on="click", nearest=nearest)


def outline(rows: pd.DataFrame, picked: str, y: alt.Y, *, field: str = "row") -> alt.Chart:
    """Return a frame from edge to edge around the row of the picked layer, or nothing.

    ``rows`` have the columns ``layer`` and ``field``. The frame has data of its own: another pick exchanges that data
    and leaves the specification as it is, so that the browser keeps what it has drawn.
    """
    own = rows.loc[rows["layer"] == picked, [field]].drop_duplicates()
    mark = alt.Chart(own).mark_rect(filled=False, stroke=INK, strokeWidth=2, aria=False, tooltip=None)
    return cast(alt.Chart, mark.encode(y=y, **EDGE_TO_EDGE))


def zero_line(*, vertical: bool = True) -> alt.Chart:
    """Return a rule at zero of the value axis."""
    rule = alt.Chart(pd.DataFrame({"zero": [0.0]})).mark_rule(color=INK, aria=False)
    return cast(alt.Chart, rule.encode(x=alt.X("zero:Q")) if vertical else rule.encode(y=alt.Y("zero:Q")))


def value_scale(title: str | None, **options: Any) -> alt.Scale:
    """Return the scale of a value axis of that title with these ``options``; that of a share ends at 100 %."""
    if not (title or "").endswith("(%)"):
        return alt.Scale(**options)
    if "domain" in options:
        low, high = options["domain"]
        return alt.Scale(**options | {"domain": [low, min(100.0, high)]})
    return alt.Scale(**options, domainMax=100)


def source_opacity() -> alt.OpacityValue:
    """Return the channel that draws measured marks solid and estimated ones pale."""
    return alt.OpacityValue(**alt.condition("datum.source === 'estimated'", alt.value(0.4), alt.value(1.0)))


def chart_parts(chart: Any) -> Iterator[Any]:
    """Yield a chart, and all layers and charts inside it."""
    yield chart
    for part in (*getattr(chart, "layer", ()), *getattr(chart, "concat", ())):
        yield from chart_parts(part)


build_unchecked()


class LayeredChart(alt.LayerChart):
    """Altair's own, but quicker to draw.

    It does not check itself against the schema each time, which takes half of the time of a click; our tests check
    every chart instead.
    """

    def to_dict(self, validate: bool = False, **options: Any) -> dict[str, Any]:
        """Return the Vega-Lite specification."""
        return super().to_dict(validate, **options)


_WIDTH = 760  # points of a saved picture, wide enough for names and values beside each other
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
        "autosize": "pad",
        "config": look,
        "title": heading | {"subtitleColor": "#5B6170", "subtitlePadding": 5},
        **({} if "concat" in spec else {"width": spec.get("width", _WIDTH)}),  # whose charts have their own
        "padding": 16,
    }


def _add_legend(spec: dict[str, Any], legend: Sequence[LegendEntry]) -> None:
    """Write the legend that stands beside the chart on the page into the channel that paints bands or sides."""
    texts = json.dumps([entry.text for entry in legend], ensure_ascii=False)
    for part in (spec, *spec.get("layer", ())):
        colour = part.get("encoding", {}).get("color", {})
        if colour.get("field") == "side":
            colour["legend"] = {"orient": "top", "title": None, "columns": 1, "labelLimit": 420, "symbolStrokeWidth": 0}
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
    return vl_convert.vegalite_to_png(picture_spec(chart, **options), vl_version=LANGUAGE, scale=2)


def frame_csv(frame: pd.DataFrame) -> str:
    """Return rows as CSV, without their index; unknown values are empty cells."""
    known = frame.astype(object).where(frame.notna(), None)
    return csv_text(list(map(str, frame.columns)), known.itertuples(index=False, name=None))


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
