"""Histograms of several layers as a wall of small charts, each of which opens large."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import altair as alt
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, words
from senseapp.app.common.figure import as_shown, chart_downloads, show_caveat
from senseapp.app.common.notices import complain
from senseapp.app.common.state import pick
from senseapp.app.results.view import RunView
from senseapp.core.errors import InvalidSpec
from senseapp.core.markdown import md
from senseapp.core.texts import matcher, part_of_name
from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.spec import HistogramSpec
from senseapp.server.layer_tasks import HistogramWall
from senseapp.views.charts.histograms import colours_text, shares_text, small_histogram, wall_chart, wall_frame
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of

_AT_ONCE = 24
_WIDTH = 250
_READING = "Each chart has scales of its own. Click a name to see its histogram large."

Show = Callable[[QuantizationHistogram, RunView], None]
Make = Callable[[HistogramWall, str, str, str], None]


def histogram_wall(view: RunView, spec: HistogramSpec, names: Sequence[str], *, make: Make, show: Show) -> None:
    """Show the small charts of the layers with these ``names`` that are made; ``make`` offers to make the others."""
    if not names:
        st.info("No layer has such a name. Try a part of one.", icon=":material/touch_app:")
        return
    wall = HistogramWall(run_id=view.run_id, spec=spec, layers=tuple(names))
    shown = _page_of(view, names)
    work = backend.service().work
    made = [each for each in (work.outcome(wall.part(name)) for name in shown) if each is not None]
    missing = len(shown) - len(made)
    if missing:
        label = f"Show {fmt.plural(len(names), 'histogram')}" if not made else f"Show the {missing} that are missing"
        make(wall, "" if made else _question(spec, len(names)), label, "All layers are looked at in the same passes.")
    if made:
        _draw(view, made, show)


def choose_layers(view: RunView, row: st.delta_generator.DeltaGenerator) -> list[str]:
    """Let the layers be named; all of them while nothing is."""
    wanted = row.text_input(
        "Layers",
        **bound(view.run_id, "wall", words(), "", key=f"histogram.search.{view.run_id}"),
        max_chars=5_000,
        label_visibility="collapsed",
        width=420,
        placeholder="All layers; or part of a name, or layer1.*.conv2",
    )
    parts = [part for part in wanted.split(",") if part.strip()] or [""]
    try:
        fits = matcher(map(part_of_name, parts))
    except InvalidSpec as error:
        complain(str(error))
        return []
    return [layer.name for layer in view.result.profile.layers if fits(layer.name.lower())]


def _page_of(view: RunView, names: Sequence[str]) -> Sequence[str]:
    """Return the layers of the chosen page, where there are more than fit on one."""
    starts = range(0, len(names), _AT_ONCE)
    if len(starts) == 1:
        return names
    start = st.segmented_control(
        "Page",
        starts,
        default=0,
        required=True,
        key=f"histogram.page.{view.run_id}.{len(names)}",
        format_func=lambda start: f"{start + 1}–{min(start + _AT_ONCE, len(names))}",
    )
    return names[start : start + _AT_ONCE]


def _question(spec: HistogramSpec, layers: int) -> str:
    return f"Where do the {spec.tensor} of {fmt.plural(layers, 'layer')} lie, and which matter?"


def _draw(view: RunView, made: Sequence[QuantizationHistogram], show: Show) -> None:
    question = _question(made[0].spec, len(made))
    lines = (view.lines[0], colours_text(made[0].spec))
    whole, charts = _charts(view.run_id, repr([each.spec for each in made]), made)
    with st.container(gap="xsmall"):
        head = st.container(horizontal=True, wrap=False, horizontal_alignment="distribute", vertical_alignment="center")
        head.markdown(md("## {}", question), width="stretch")
        with head:
            chart_downloads(whole, title=question, lines=lines, data=wall_frame(made), key=f"wall.{view.run_id}")
        show_caveat(caveat_of(view.result))
        st.caption(f"{colours_text(made[0].spec)}, over {fmt.plural(made[0].num_images, 'image')}. {_READING}")
    grid = st.container(horizontal=True, gap="medium", key="histogram_wall")
    for histogram, chart in zip(made, charts, strict=True):
        name = histogram.spec.layer
        with grid.container(width=_WIDTH, gap=None):
            opened = st.button(
                name,
                key=f"wall.open.{name}.{view.run_id}",
                type="tertiary",
                icon=":material/open_in_full:",
                on_click=pick,
                args=(view.run_id, name),
                help="Opens the histogram large, and picks the layer.",
            )
            shares = shares_text(histogram)
            st.altair_chart(as_shown(chart), key=f"wall.chart.{name}.{view.run_id}", alt=f"{name}: {shares}.")
            st.caption(shares)
        if opened:
            st.dialog(name, width="large")(show)(histogram, view)


@st.cache_resource(show_spinner=False, max_entries=8)
def _charts(
    run_id: str, specs: str, _made: Sequence[QuantizationHistogram]
) -> tuple[alt.ConcatChart, list[alt.LayerChart]]:
    """Return all in one chart, for pictures, and each by itself; made once, as it takes a third of a second."""
    return wall_chart(_made), [small_histogram(each) for each in _made]
