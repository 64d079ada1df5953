"""The Histograms tab: one tensor on its quantization grid, and what each part of the grid means to the output."""

from __future__ import annotations

import streamlit as st

from senseapp.errors import SenseError
from senseapp.results.histogram import QuantizationHistogram
from senseapp.service.histogram_task import HistogramTask
from senseapp.spec.histogram import HistogramSpec
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.charts import cell_profile_chart, quantization_bars
from senseapp.ui.components.figure import figure
from senseapp.ui.components.figures_row import figures_row
from senseapp.ui.components.histogram_controls import choose_histogram
from senseapp.ui.components.notices import complain
from senseapp.ui.components.run_guard import may_start
from senseapp.ui.components.run_view import RunView
from senseapp.ui.histogram_frames import bin_frame, mark_frame, profile_frame
from senseapp.ui.wording import caveat_of

_POLL_SECONDS = 0.3
_READING = (
    "Bars count the values around each grid point, the orange line is how much each place matters, dashed lines are "
    "the means of the cells and, in red, the true range. Where sensitive values crowd into few cells or vanish into "
    "zero, give the layer more bits; scroll to zoom."
)
_READING_PROFILE = (
    "Flat: rounding errors are spread evenly, as estimates assume. A peak in the middle: most values lie on the grid."
)
_SENSITIVITY = {"output": "|gradient| of the score", "loss": "|gradient| of the loss"}


def histograms_tab(view: RunView) -> None:
    """Show the controls, and the histogram once it is made."""
    if view.result.spec.model.library == "imported":
        st.info("Imported figures come without a network, so there are no values to look at.", icon=":material/info:")
        return
    spec = choose_histogram(view)
    try:
        histogram = backend.service().work.outcome(HistogramTask(run_id=view.run_id, spec=spec))
        if histogram is not None:
            _show(histogram, view)
        else:
            _make(view.run_id, spec)
    except SenseError as error:
        complain(str(error))


def _make(run_id: str, spec: HistogramSpec) -> None:
    snapshot = backend.service().work.progress(HistogramTask(run_id=run_id, spec=spec))
    if snapshot is not None and not snapshot.state.finished:
        st.fragment(_wait, run_every=_POLL_SECONDS)(run_id, spec)
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
        backend.service().work.start(HistogramTask(run_id=run_id, spec=spec))
        st.rerun()


def _wait(run_id: str, spec: HistogramSpec) -> None:
    snapshot = backend.service().work.progress(HistogramTask(run_id=run_id, spec=spec))
    if snapshot is None or snapshot.state.finished:
        st.rerun()
    waiting = "Waiting for the run before it" if snapshot.queue_place else "Starting"
    st.caption(f":material/hourglass_empty: {snapshot.phase or waiting} …")


def _show(histogram: QuantizationHistogram, view: RunView) -> None:
    spec = histogram.spec
    _figures(histogram)
    one_scale = histogram.scale == histogram.scale
    figure(
        f"Where do the {spec.tensor} of {spec.layer} lie on the quantization grid, and which matter?",
        quantization_bars(
            bin_frame(histogram),
            mark_frame(histogram),
            x_title="Value" if one_scale else "Place on the channel's grid (steps from 0)",
            sensitivity_title=_SENSITIVITY.get(spec.objective),
        ),
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
