"""Charts with title, reading help, text alternative and save menu; the provenance line."""

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import altair as alt
import pandas as pd
import streamlit as st

from senseapp.app.common.download import offer_file
from senseapp.app.common.expert import notes_shown, reading_shown
from senseapp.app.common.notices import reveal
from senseapp.app.common.state import pick, session
from senseapp.compat.altair_internals import show_unchecked
from senseapp.core.markdown import md
from senseapp.records.measurement import RunResult
from senseapp.views.charts import axes
from senseapp.views.palette import INK, TEXT, LegendEntry
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import notes_of, passes_text, provenance_line

_Chart = alt.Chart | alt.LayerChart
_DRAWING_ONLY = ("row", "description", "unclear", "ranked", "known", "order", "band")


def _chart_downloads(chart: _Chart, data: pd.DataFrame | None, title: str, *, key: str, **look: Any) -> None:
    """Offer ``chart`` as PNG, SVG and CSV; each is made when it is clicked.

    ``title`` names the files too; it and the ``look`` are arguments of :func:`picture_spec`. ``data`` are the rows of
    the CSV; None takes those that are drawn. Columns that only drawing needs are left out.
    """

    def table() -> str:
        rows = data if data is not None else axes.drawn_rows(chart)
        return axes.frame_csv(rows.drop(columns=list(_DRAWING_ONLY), errors="ignore"))

    files: dict[str, tuple[str, Callable[[], str | bytes]]] = {
        "png": ("PNG image", partial(axes.picture_png, chart, title=title, **look)),
        "svg": ("SVG drawing", partial(axes.picture_svg, chart, title=title, **look)),
        "csv": ("CSV data", table),
    }
    with st.popover("Save", icon=":material/download:", type="tertiary", key=f"{key}.save"):
        for ending, (label, make) in files.items():
            name = f"{fmt.file_stem(title)}.{ending}"
            offer_file(label, make, name, key=f"{key}.{ending}", icon=None, type="tertiary")


_TALLEST = 560  # pixels: with the heading above and the caption below, a chart fits on a laptop's screen


def _of_the_screen(least: int, share: int) -> alt.ExprRef:
    """Return a size of type that grows with the window, whose width is ``share`` times as large."""
    return alt.ExprRef(f"max({least}, windowSize()[0] / {share})")


_LARGE: dict[str, dict[str, Any]] = {
    "axis": {"labelFontSize": _of_the_screen(15, 90), "titleFontSize": _of_the_screen(18, 75), "tickCount": 8},
    "legend": {"labelFontSize": _of_the_screen(17, 80)},
    "text": {"fontSize": _of_the_screen(15, 90)},
}


def as_shown(chart: _Chart, *, large: bool = False) -> _Chart:
    """Return the chart with the colours of text that the theme needs; ``large``: to be read from further away.

    Streamlit's theme has no colour for words inside charts, and Vega's black cannot be read on dark.
    """
    colour = TEXT.get(st.context.theme.type or "", INK)
    shown = chart.copy(deep=False)
    shown.config = alt.Config(
        axis=alt.AxisConfig(labelColor=colour, titleColor=colour, **_LARGE["axis"] if large else {}),
        legend=alt.LegendConfig(
            labelColor=colour, titleColor=colour, labelLimit=0, **_LARGE["legend"] if large else {}
        ),
        text=alt.MarkConfig(color=colour, **_LARGE["text"] if large else {}),
        title=alt.TitleConfig(subtitleColor=colour),
    )
    if large:  # as high as its place
        shown.autosize = alt.Undefined
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame with a scroll bar: its height in pixels, and what it shows of all rows, as a sentence."""

    height: int
    note: str


def rows_height(rows: int, *, step: int = axes.ROW_STEP, tallest: int = _TALLEST) -> Frame | None:
    """Return a scrolling frame that cuts no row, or None if that many rows of layers fit without one."""
    whole = (tallest - axes.AXIS_HEIGHT) // step
    if rows <= whole:
        return None
    return Frame(
        height=axes.AXIS_HEIGHT + whole * step, note=f"{whole} of {rows} rows are in view: scroll for the others."
    )


def place_of(layer: str, layers: Sequence[str]) -> float | None:
    """Return where ``layer`` stands among ``layers``, 0 for the first to 1 for the last; None if it does not."""
    return (list(layers).index(layer) + 0.5) / len(layers) if layer in layers else None


def show_caveat(caveat: str) -> None:
    """Show what :func:`senseapp.views.words.wording.caveat_of` says of a run; nothing if it is empty."""
    if caveat:
        st.badge(caveat, icon=":material/warning:", color="orange")


FigureHead = tuple[st.delta_generator.DeltaGenerator, st.delta_generator.DeltaGenerator]
"""Room for the heading of a figure, and for the buttons beside it."""


def figure_head() -> FigureHead:
    """Make the first row of a figure, for controls that stand beside its heading; see :func:`figure`."""
    row = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small")
    return row.container(width="content"), row.container(horizontal=True, width="content", gap="small")


def figure(
    question: str,
    chart: alt.Chart | alt.LayerChart,
    *,
    alt_text: str,
    key: str,
    run_id: str = "",
    on_pick: Callable[[], None] | None = None,
    about: str = "",
    reading: str = "",
    caveat: str = "",
    frame_height: Frame | None = None,
    lines: Sequence[str] = (),
    data: pd.DataFrame | None = None,
    level: Literal[2, 3] = 2,
    saves: bool = True,
    shown: float | None = None,
    legend: Sequence[LegendEntry] = (),
    large: bool = False,
    head: FigureHead | None = None,
) -> None:
    """Draw ``chart`` under ``question``, with a menu that saves it.

    Args:
        question: that the chart answers; the heading.
        chart: with a ``pick`` selection if ``run_id`` is given.
        alt_text: the finding in words, for screen readers.
        key: holds the run's id, so that a selection never leaks into another run.
        run_id: the run whose picked layer a click changes; empty for charts that do not pick a layer.
        on_pick: called after a click on a chart with a ``pick`` selection of something else.
        about: the terms of art in it, behind a question mark.
        reading: how to read it, in small print below it.
        caveat: of :func:`senseapp.views.words.wording.caveat_of`; stands beside every chart of an indicative run.
        frame_height: of :func:`rows_height`, with a scroll bar; None draws the chart whole.
        lines: below the title of saved pictures; the caveat is added.
        data: rows of the saved table; None takes those that are drawn.
        level: of the heading.
        saves: whether there is a menu; none while a chart still fills.
        shown: place of the picked row in a frame with a scroll bar, 0 for its top to 1 for its bottom.
        legend: of the colours; stands above the frame, so that it stays in sight, and on saved pictures.
        large: draws it for a room, as high as the screen has room.
        head: of :func:`figure_head`, where controls of the chart stand; None makes one.
    """
    with st.container(gap="xsmall"):
        title, buttons = head or figure_head()
        if not large:  # a screen for a room has a title of its own
            title.markdown(md("## {}" if level == 2 else "### {}", question), width="content", help=about or None)
        if saves:
            with buttons:
                _chart_downloads(chart, data, question, key=key, lines=[*lines, *filter(None, [caveat])], legend=legend)
        show_caveat(caveat)
        if legend:
            st.html(_legend_html(legend))
        chart = as_shown(chart, large=large)
        show_unchecked(chart)
        frame = re.sub(r"[^\w-]", "_", f"{key}_{'screen' if large else 'frame'}")
        framed = None if large else frame_height
        with st.container(height=framed.height if framed else "content", border=False, key=frame):
            if large:
                st.altair_chart(chart, key=key, alt=alt_text, height="stretch")
            elif run_id or on_pick:

                def take_pick() -> None:
                    picked = st.session_state[key]["selection"].get(axes.PICK) or [{"layer": ""}]
                    pick(run_id, str(picked[0]["layer"]))

                taken = _unless_forgotten(on_pick or take_pick)
                st.altair_chart(chart, key=key, alt=alt_text, selection_mode=[axes.PICK], on_select=taken)
            else:
                st.altair_chart(chart, key=key, alt=alt_text)
        if said := " ".join(filter(None, [framed.note if framed else "", reading])):
            st.caption(said)
        if shown is not None and frame_height:
            reveal(frame, shown)


def _legend_html(legend: Sequence[LegendEntry]) -> str:
    """Return a row of coloured squares with their words; all of them are ours."""
    swatch = "display:inline-block;width:0.8em;height:0.8em;margin-right:0.35em"
    entries = (
        f'<span style="margin-right:1em;white-space:nowrap"><span style="{swatch};background:{entry.color};'
        f'border:1px solid {INK}"></span>{html.escape(entry.text)}</span>'
        for entry in legend
    )
    return f'<div role="note" aria-label="Colours" style="font-size:0.8rem;line-height:1.4">{"".join(entries)}</div>'


def _unless_forgotten(take: Callable[[], None]) -> Callable[[], None]:
    """Return ``take`` for a chart of this round of picks only.

    A page that asks for its progress just after the pick was dropped sends the click on the chart of before once more.
    """
    drawn_in = session().pick_round

    def taken() -> None:
        if session().pick_round == drawn_in:
            take()

    return taken


MARGINS = "95 % intervals (95 of 100 hold the true value)"
_ABOUT_FIGURES = md(
    "A 95 % interval says where the true change lies, had all images been measured that are like these. Baseline and "
    "compressed model see the same images. With the same seed, the same numbers come out."
)


def provenance(result: RunResult, *, pictures: Callable[[], None] | None = None) -> None:
    """Show what was measured, on its tooltip how; how it was read, with ``pictures``; and the notes on the run."""
    notes = notes_shown(notes_of(result), of_bits=result.compression.description.sets_bits)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(provenance_line(result), help=md("{}\n\n", passes_text(result)) + _ABOUT_FIGURES, width="content")
        if result.reading is not None:
            with st.popover(
                "What we understood", type="tertiary", icon=":material/visibility:", key="reading", on_change="rerun"
            ) as fold:
                st.markdown(md("\n").join(md("- {}", sentence) for sentence in reading_shown(result.reading.sentences)))
                if fold.open and pictures is not None:
                    pictures()
        if notes:
            with st.popover(f"{fmt.plural(len(notes), 'note')} on this run", type="tertiary", icon=":material/info:"):
                st.markdown(md("\n").join(md("- {}", note) for note in notes))
