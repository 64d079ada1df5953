"""The Histograms tab: one tensor on its quantization grid, and what each part of the grid means to the output."""

from __future__ import annotations

import streamlit as st

from senseapp.errors import SenseError
from senseapp.results.histogram import QuantizationHistogram
from senseapp.spec.histogram import HistogramSpec
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.charts import cell_profile_chart, quantization_bars
from senseapp.ui.components.figures_row import figures_row
from senseapp.ui.components.histogram_controls import choose_histogram
from senseapp.ui.components.notices import complain
from senseapp.ui.components.run_view import RunView
from senseapp.ui.histogram_frames import bin_frame, mark_frame, profile_frame

__all__ = ["histograms_tab"]

_POLL_SECONDS = 0.7
_READING = (
    "Dashed lines: the mean of each cell, and in red the true range. A high bar at zero means that many values vanish; "
    "values in bins with high sensitivity should keep their place, so give such a layer more bits."
)
_SENSITIVITY = {"output": "|gradient| of the score", "loss": "|gradient| of the loss"}


def histograms_tab(view: RunView) -> None:
    """Show the controls, and the histogram once it is made."""
    st.markdown("##### Where do the values lie on the quantization grid, and which of them matter?")
    if view.result.spec.model.library == "imported":
        st.info("Imported figures come without a network, so there are no values to look at.", icon=":material/info:")
        return
    spec = choose_histogram(view)
    try:
        histogram = backend.service().histogram(view.run_id, spec)
        if histogram is not None:
            _show(histogram, view.run_id)
        else:
            _make(view.run_id, spec)
    except SenseError as error:
        complain(str(error))


def _make(run_id: str, spec: HistogramSpec) -> None:
    snapshot = backend.service().histogram_progress(run_id, spec)
    if snapshot is not None and not snapshot.state.finished:
        st.fragment(_wait, run_every=_POLL_SECONDS)(run_id, spec)
        return
    if snapshot is not None and snapshot.error:
        complain(snapshot.error)
    st.caption(f"Looks at up to {fmt.plural(spec.num_images, 'image')}; a large network takes half a minute.")
    if st.button("Show histogram", key=f"histogram.start.{run_id}", type="primary"):
        backend.service().start_histogram(run_id, spec)
        st.rerun()


def _wait(run_id: str, spec: HistogramSpec) -> None:
    snapshot = backend.service().histogram_progress(run_id, spec)
    if snapshot is None or snapshot.state.finished:
        st.rerun()
    waiting = "Waiting for the run before it" if snapshot.queue_place else "Starting"
    st.caption(f":material/hourglass_empty: {snapshot.phase or waiting} …")


def _show(histogram: QuantizationHistogram, run_id: str) -> None:
    spec = histogram.spec
    _figures(histogram)
    st.caption(_READING)
    one_scale = histogram.scale == histogram.scale
    st.altair_chart(
        quantization_bars(
            bin_frame(histogram),
            mark_frame(histogram),
            x_title="Value" if one_scale else "Place on the channel's grid (steps from 0)",
            sensitivity_title=_SENSITIVITY.get(spec.objective),
        ),
        key=f"histogram.bars.{run_id}",
        alt=f"{spec.tensor} of {spec.layer} on a grid of {spec.bits} bits: "
        f"{fmt.percent(histogram.zero_share, digits=1)} become zero, "
        f"{fmt.percent(histogram.clamped_share, digits=2)} are clamped.",
    )
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("###### How are values spread inside a cell?")
        st.caption(
            "Flat: rounding errors are spread evenly. A peak in the middle: most values lie on the grid already."
        )
        st.altair_chart(
            cell_profile_chart(profile_frame(histogram)),
            key=f"histogram.profile.{run_id}",
            alt="Mean distribution of the values between the two edges of a cell",
        )
    with right:
        for note in histogram.notes:
            st.caption(f":material/info: {note}")
        st.download_button(
            "Download CSV",
            lambda: bin_frame(histogram, every_bin=True).to_csv(index=False, lineterminator="\n"),
            file_name=f"histogram_{spec.layer}_{spec.tensor}_{spec.bits}bits.csv",
            mime="text/csv",
            key=f"histogram.csv.{run_id}",
            on_click="ignore",
            icon=":material/download:",
            help="One row per bin: its grid point, ends, number of values, gradient sum and sensitivity.",
        )


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
