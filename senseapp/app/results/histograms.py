"""The Histograms tab: tensors on their quantization grid, one large or several as a wall of small charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import altair as alt
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import SWITCH, bound, one_of, words
from senseapp.app.common.figure import as_shown, chart_downloads, choose_one, figure, figures_row, show_caveat
from senseapp.app.common.notices import POLL_SECONDS, complain, errors_here, progress_bar
from senseapp.app.common.run_guard import may_start
from senseapp.app.common.state import pick
from senseapp.app.results.view import RunView
from senseapp.core.errors import InvalidSpec
from senseapp.core.markdown import Markdown, md
from senseapp.core.texts import matcher, part_of_name
from senseapp.records.layer_findings import WEIGHT_BITS, QuantizationHistogram
from senseapp.records.spec import HistogramObjective, HistogramSpec, HistogramTensor
from senseapp.server.layer_tasks import HistogramTask, HistogramWall
from senseapp.tasks import task_named
from senseapp.views.charts.histograms import (
    bin_frame,
    cell_profile_chart,
    colours_text,
    histogram_chart,
    profile_frame,
    shares_text,
    small_histogram,
    wall_chart,
    wall_frame,
)
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of

_AT_ONCE = 24  # histograms of a page: each is a chart that the browser draws
_WIDTH = 250  # pixels: of the chart and its margins, four in a row
_READING_WALL = "Each chart has scales of its own. Click a name to see its histogram large."

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
    finished = [each for each in (work.outcome(wall.part(name)) for name in shown) if each is not None]
    missing = len(shown) - len(finished)
    if missing:
        label = (
            f"Show {fmt.plural(len(names), 'histogram')}" if not finished else f"Show the {missing} that are missing"
        )
        make(
            wall, "" if finished else _question(spec, len(names)), label, "All layers are looked at in the same passes."
        )
    if finished:
        _draw(view, finished, show)


def choose_layers(view: RunView, row: st.delta_generator.DeltaGenerator) -> list[str]:
    """Show a field for names of layers; return the matching ones, all if it is empty."""
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


def _draw(view: RunView, finished: Sequence[QuantizationHistogram], show: Show) -> None:
    question = _question(finished[0].spec, len(finished))
    lines = (view.lines[0], colours_text(finished[0].spec))
    whole, charts = _charts(view.run_id, repr([each.spec for each in finished]), finished)
    with st.container(gap="xsmall"):
        head = st.container(horizontal=True, wrap=False, horizontal_alignment="distribute", vertical_alignment="center")
        head.markdown(md("## {}", question), width="stretch")
        with head:
            chart_downloads(whole, title=question, lines=lines, data=wall_frame(finished), key=f"wall.{view.run_id}")
        show_caveat(caveat_of(view.result))
        st.caption(
            f"{colours_text(finished[0].spec)}, over {fmt.plural(finished[0].num_images, 'image')}. {_READING_WALL}"
        )
    grid = st.container(horizontal=True, gap="medium", key="histogram_wall")
    for histogram, chart in zip(finished, charts, strict=True):
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


_TENSORS: dict[HistogramTensor, str] = {
    "weights": "Weights",
    "activations": "Inputs",
    "outputs": "Outputs",
}
_OBJECTIVES: tuple[HistogramObjective, ...] = ("output", "loss", "mean", "none")
_ONE, _SEVERAL = "One layer", "Several"


def choose_histogram(view: RunView) -> HistogramSpec:
    """Show the controls; the layer is the picked one, or the most fragile while none is."""
    run_id = view.run_id
    row = st.container(horizontal=True, vertical_alignment="top", gap="medium")
    tensor = row.segmented_control(
        "Values",
        list(_TENSORS),
        required=True,
        format_func=_TENSORS.__getitem__,
        **bound(run_id, "values", one_of(_TENSORS), "weights", key=f"histogram.tensor.{run_id}"),
        help="Weights, the activations that a layer takes in, or its outputs.",
    )
    bits = row.select_slider(
        "Bits",
        WEIGHT_BITS,
        **bound(run_id, "grid", one_of(WEIGHT_BITS), 4, key=f"histogram.bits.{run_id}"),
        width=130,
        help="Of the grid; 8 bits have 255 or 256 points.",
    )
    score = task_named(view.result.spec.model.task).score_label
    titles = {"output": score, "loss": "Loss", "mean": "Mean output", "none": "Nothing"}
    objectives = [name for name in _OBJECTIVES if name != "loss" or view.result.has_labels]
    objective = row.selectbox(
        "Sensitivity to",
        objectives,
        format_func=titles.__getitem__,
        **bound(run_id, "sensitivity", one_of(objectives), objectives[0], key=f"histogram.objective.{run_id}"),
        help=f"What is back-propagated to the values: each image's {score.lower()}, its loss, or the mean of all its "
        "outputs. Nothing is fastest, and shows the values only.",
        width=160,
    )
    switches = row.container(width="content", gap="xxsmall")
    per_channel = switches.toggle(
        "One scale per channel",
        **bound(run_id, "channel", SWITCH, usual=False, key=f"histogram.channel.{run_id}"),
        help="Each channel gets a grid of its own; places are then in steps, not in values.",
    )
    fold = switches.toggle(
        "Fold BatchNorm",
        **bound(run_id, "fold", SWITCH, usual=False, key=f"histogram.fold.{run_id}"),
        help="Merges the BatchNorm that follows into the layer, as deployment does; the model's output stays.",
    )
    return HistogramSpec(
        layer=view.usual_layer, tensor=tensor, bits=int(bits), per_channel=per_channel, fold=fold, objective=objective
    )


_READING = (
    "Bars count the values around each grid point, the orange line is how much each place matters, dashed lines are "
    "the means of the cells and, in red, the true range. Where sensitive values crowd into few cells or vanish into "
    "zero, give the layer more bits; scroll to zoom."
)
_READING_PROFILE = (
    "The mean over all cells but that of zero. Flat: rounding errors are spread evenly, as estimates assume. A peak in "
    "the middle: most values lie on the grid."
)
_READING_SENSITIVE = (
    "The same mean of the gradients. A peak at the edges: what matters most is what rounding moves furthest."
)


def histograms_tab(view: RunView) -> None:
    """Show the controls, and the histograms once they are made: of one layer, or of several side by side."""
    if not view.result.spec.model.is_runnable:
        st.info("Imported figures come without a network, so there are no values to look at.", icon=":material/info:")
        return
    row = st.container(horizontal=True, vertical_alignment="center", gap="medium")
    several = (
        choose_one(
            row,
            "How many",
            (_ONE, _SEVERAL),
            scope=view.run_id,
            name="histograms",
            key=f"histogram.layers.{view.run_id}",
        )
        == _SEVERAL
    )
    names = choose_layers(view, row) if several else []
    spec = choose_histogram(view)
    with errors_here():
        if several:
            histogram_wall(view, spec, names, make=make, show=_show)
            return
        task = HistogramTask(run_id=view.run_id, spec=spec)
        histogram = backend.service().work.outcome(task)
        if histogram is not None:
            _show(histogram, view)
        else:
            question = f"Where do the {spec.tensor} of {spec.layer} lie on the quantization grid, and which matter?"
            make(task, question, "Show histogram", "Choose another layer above.")


def make(task: HistogramTask | HistogramWall, question: str, label: str, advice: str) -> None:
    """Show the progress of ``task``, or a button that starts it, below the heading ``question``."""
    run_id, spec = task.run_id, task.spec
    snapshot = backend.service().work.progress(task)
    if snapshot is not None and not snapshot.state.finished:
        st.fragment(_wait, run_every=POLL_SECONDS)(task)
        return
    if snapshot is not None and snapshot.error:
        complain(snapshot.error)
        label = "Try again"
    if question:
        st.markdown(md("## {}", question))
    if not may_start(run_id, "this histogram"):
        return
    st.caption(
        f"Looks at up to {fmt.plural(spec.num_images, 'image')} of this run; a large network takes some seconds. "
        f"{advice}"
    )
    if st.button(label, key=f"histogram.start.{run_id}", type="primary"):
        backend.service().work.start(task)
        st.rerun()


def _wait(task: HistogramTask | HistogramWall) -> None:
    snapshot = backend.service().work.progress(task)
    if snapshot is None or snapshot.state.finished:
        st.rerun()
    progress_bar(snapshot)


def _show(histogram: QuantizationHistogram, view: RunView) -> None:
    spec = histogram.spec
    _figures(histogram)
    figure(
        f"Where do the {spec.tensor} of {spec.layer} lie on the quantization grid, and which matter?",
        histogram_chart(histogram),
        alt_text=f"{spec.tensor} of {spec.layer} on a grid of {spec.bits} bits: "
        f"{fmt.percent(histogram.zero_share, digits=1)} become zero, "
        f"{fmt.percent(histogram.clamped_share, digits=2)} are clamped.",
        key=f"histogram.bars.{view.run_id}",
        caveat=caveat_of(view.result),
        reading=_READING,
        lines=_lines(histogram, view),
        data=bin_frame(histogram, every_bin=True),
    )
    places = st.columns(2, gap="large")
    with places[0]:
        _profile(histogram, view)
    if histogram.spec.objective != "none":
        with places[1]:
            _profile(histogram, view, sensitivity=True)
    for note in histogram.notes:
        st.caption(md(":material/info: {}", note))


def _profile(histogram: QuantizationHistogram, view: RunView, *, sensitivity: bool = False) -> None:
    share = histogram.sensitivity_profile if sensitivity else histogram.profile
    what = "sensitivity" if sensitivity else "values"
    figure(
        "Where in a cell does it matter?" if sensitivity else "How are values spread inside a cell?",
        cell_profile_chart(profile_frame(histogram, sensitivity=sensitivity), sensitivity=sensitivity),
        alt_text=f"Mean distribution of the {what} between the two edges of a cell: "
        f"{fmt.percent(max(share), digits=1)} in the fullest of {histogram.sub_bins} parts.",
        key=f"histogram.{'sensitive' if sensitivity else 'profile'}.{view.run_id}",
        reading=md(
            "{} Of the {}, {}.",
            _READING_SENSITIVE if sensitivity else _READING_PROFILE,
            what,
            _shares_in_words(histogram, sensitivity=sensitivity),
        ),
        lines=_lines(histogram, view),
    )


def _lines(histogram: QuantizationHistogram, view: RunView) -> tuple[str, str]:
    """Return what is written below the title of the saved pictures."""
    spec = histogram.spec
    settings = [
        f"{spec.tensor} of {spec.layer}",
        f"{spec.bits} bits",
        "one scale per channel" if spec.per_channel else "one scale",
        *(["BatchNorm folded"] if spec.fold and not histogram.notes else []),
    ]
    shares = (
        f"{fmt.percent(histogram.zero_share, digits=1)} become zero, "
        f"{fmt.percent(histogram.clamped_share, digits=3)} clamped, {fmt.plural(histogram.num_images, 'image')}"
    )
    return f"{view.result.profile.title} · {' · '.join(settings)}", shares


def _figures(histogram: QuantizationHistogram) -> None:
    figures_row(
        {
            "Become zero": fmt.percent(histogram.zero_share, digits=1),
            "Clamped": fmt.percent(histogram.clamped_share, digits=3),
            "True range": f"{histogram.low:.4g} to {histogram.high:.4g}".replace("-", "−"),
            "Step": f"{histogram.scale:.4g}" if histogram.scale == histogram.scale else "one per channel",
            "Values": fmt.count(histogram.total),
            "Images": str(histogram.num_images),
        },
        helps={
            "Become zero": "Share of the values that are rounded to 0.",
            "Clamped": "Share of the values beyond the grid's ends.",
            "Step": "Distance of neighbouring grid points.",
        },
        key="histogram_figures",
    )


def _shares_in_words(histogram: QuantizationHistogram, *, sensitivity: bool) -> Markdown:
    """Return how much lies off the grid points and, of the sensitivity, how much at zero and beyond the grid."""
    profile = histogram.sensitivity_profile if sensitivity else histogram.profile
    shares = [(histogram.off_grid_share(profile), "more than an eighth of a step from a grid point")]
    if sensitivity:
        shares += [(histogram.sensitive_zero_share, "in the cell of zero")]
        shares += [(histogram.sensitive_clamped_share, "at clamped values")]
    known = [(share, where) for share, where in shares if not math.isnan(share)]
    return md(", ").join(md("**{}** {}", fmt.percent(share, digits=1), where) for share, where in known)
