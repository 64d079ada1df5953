"""The Histograms tab: one tensor on its quantization grid, and what each part of the grid means to the output."""

from __future__ import annotations

import streamlit as st

from senseapp.app.charts.quantization_bars import bin_frame, cell_profile_chart, histogram_chart, profile_frame
from senseapp.app.common import backend
from senseapp.app.common.figure import figure, figures_row
from senseapp.app.common.notices import complain, errors_here
from senseapp.app.common.run_guard import may_start
from senseapp.app.common.state import kept
from senseapp.app.results.view import RunView
from senseapp.app.words import format as fmt
from senseapp.app.words.wording import caveat_of
from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.spec import HistogramObjective, HistogramSpec, HistogramTensor
from senseapp.runs.tasks import HistogramTask
from senseapp.tasks import task_named

_TENSORS: dict[HistogramTensor, str] = {"weights": "Weights", "activations": "Input activations"}
_OBJECTIVES: tuple[HistogramObjective, ...] = ("output", "loss", "none")


def choose_histogram(view: RunView) -> HistogramSpec:
    """Show the controls; the layer is the picked one, or the most fragile while none is."""
    run_id = view.run_id
    row = st.container(horizontal=True, vertical_alignment="top", gap="medium")
    tensor = row.segmented_control(
        "Values", list(_TENSORS), default="weights", required=True, format_func=_TENSORS.__getitem__,
        **kept(f"histogram.tensor.{run_id}"),
    )  # fmt: skip
    bits = row.select_slider(
        "Bits", range(2, 9), 4, **kept(f"histogram.bits.{run_id}"), width=150,
        help="Of the grid; 8 bits have 255 or 256 points.",
    )  # fmt: skip
    score = task_named(view.result.spec.model.task).score_label
    titles = {"output": score, "loss": "Loss", "none": "Nothing"}
    objectives = [name for name in _OBJECTIVES if name != "loss" or view.result.has_labels]
    objective = row.selectbox(
        "Sensitivity to", objectives, format_func=titles.__getitem__, **kept(f"histogram.objective.{run_id}"),
        help=f"What is back-propagated to the values: each image's {score.lower()}, or its loss. Nothing is "
        "fastest, and shows the values only.",
        width=160,
    )  # fmt: skip
    switches = row.container(width="content", gap="xxsmall")
    per_channel = switches.toggle(
        "One scale per channel", **kept(f"histogram.channel.{run_id}"),
        help="Each channel gets a grid of its own; places are then in steps, not in values.",
    )  # fmt: skip
    fold = switches.toggle(
        "Fold BatchNorm", **kept(f"histogram.fold.{run_id}"),
        help="Merges the BatchNorm that follows into the layer, as deployment does; the model's output stays.",
    )  # fmt: skip
    return HistogramSpec(
        layer=view.usual_layer, tensor=tensor, bits=int(bits), per_channel=per_channel, fold=fold, objective=objective
    )


_POLL_SECONDS = 0.3
_READING = (
    "Bars count the values around each grid point, the orange line is how much each place matters, dashed lines are "
    "the means of the cells and, in red, the true range. Where sensitive values crowd into few cells or vanish into "
    "zero, give the layer more bits; scroll to zoom."
)
_READING_PROFILE = (
    "Flat: rounding errors are spread evenly, as estimates assume. A peak in the middle: most values lie on the grid."
)


def histograms_tab(view: RunView) -> None:
    """Show the controls, and the histogram once it is made."""
    if view.result.spec.model.library == "imported":
        st.info("Imported figures come without a network, so there are no values to look at.", icon=":material/info:")
        return
    task = HistogramTask(run_id=view.run_id, spec=choose_histogram(view))
    with errors_here():
        histogram = backend.service().work.outcome(task)
        if histogram is not None:
            _show(histogram, view)
        else:
            _make(task)


def _make(task: HistogramTask) -> None:
    run_id, spec = task.run_id, task.spec
    snapshot = backend.service().work.progress(task)
    if snapshot is not None and not snapshot.state.finished:
        st.fragment(_wait, run_every=_POLL_SECONDS)(task)
        return
    if snapshot is not None and snapshot.error:
        complain(snapshot.error)
    st.markdown(f"## Where do the {spec.tensor} of {spec.layer} lie on the quantization grid, and which matter?")
    if not may_start(run_id, "this histogram"):
        return
    st.caption(
        f"Looks at up to {fmt.plural(spec.num_images, 'image')} of this run; a large network takes some seconds. "
        "Choose another layer above."
    )
    if st.button("Show histogram", key=f"histogram.start.{run_id}", type="primary"):
        backend.service().work.start(task)
        st.rerun()


def _wait(task: HistogramTask) -> None:
    snapshot = backend.service().work.progress(task)
    if snapshot is None or snapshot.state.finished:
        st.rerun()
    waiting = "Waiting for the run before it" if snapshot.queue_place else "Starting"
    st.caption(f":material/hourglass_empty: {snapshot.phase or waiting} …")


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
    left, right = st.columns(2, gap="large")
    with left:
        figure(
            "How are values spread inside a cell?",
            cell_profile_chart(profile_frame(histogram)),
            alt_text="Mean distribution of the values between the two edges of a cell: "
            f"{fmt.percent(max(histogram.profile), digits=1)} in the fullest of {histogram.sub_bins} parts.",
            key=f"histogram.profile.{view.run_id}",
            reading=_READING_PROFILE,
            lines=_lines(histogram, view),
        )
    with right:
        for note in histogram.notes:
            st.caption(f":material/info: {note}")


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
