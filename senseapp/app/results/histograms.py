"""Histograms: the values of a layer on their quantization grid, and how much each place on it matters."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common.address import SWITCH, bound, choose, one_of
from senseapp.app.common.figure import figure
from senseapp.app.common.notices import errors_here, show_notes
from senseapp.app.common.run_guard import outcome_or_offer
from senseapp.app.common.tables import figures_row
from senseapp.app.results.view import RunView
from senseapp.core.markdown import md
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.spec import HistogramObjective, HistogramSpec, HistogramTensor
from senseapp.server.run_tasks import HistogramTask
from senseapp.tasks import task_named
from senseapp.views.charts.histograms import bin_frame, histogram_chart, shares_text
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of

_TENSORS: dict[HistogramTensor, str] = {"weights": "Weights", "activations": "Inputs", "outputs": "Outputs"}
_WEIGHT_BITS = range(2, 9)
_OBJECTIVES: tuple[HistogramObjective, ...] = ("output", "loss", "mean", "none")


def choose_histogram(view: RunView) -> HistogramSpec:
    """Show the controls; the layer is the picked one, or the most fragile while none is."""
    run_id = view.run_id
    row = st.container(horizontal=True, vertical_alignment="top", gap="medium")
    tensor = choose(
        "Values",
        _TENSORS,
        "weights",
        run_id,
        "values",
        place=row,
        help="Weights, the activations that a layer takes in, or its outputs.",
    )
    bits = row.select_slider(
        "Bits",
        _WEIGHT_BITS,
        **bound(run_id, "grid", one_of(_WEIGHT_BITS), 4, key=f"histogram.bits.{run_id}"),
        width=130,
        help="Of the grid; 8 bits have 255 or 256 points.",
    )
    score = task_named(view.result.spec.model.task).score_label
    titles = {"output": score, "loss": "Loss", "mean": "Mean output", "none": "Nothing"}
    objectives = [name for name in _OBJECTIVES if name != "loss" or view.result.has_labels]
    objective = choose(
        "Sensitivity to",
        {name: titles[name] for name in objectives},
        objectives[0],
        run_id,
        "sensitivity",
        place=row,
        is_list=True,
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
        "Fold normalization",
        **bound(run_id, "fold", SWITCH, usual=False, key=f"histogram.fold.{run_id}"),
        help="Merges the normalization that follows into the layer, as deployment does; the model's output stays.",
    )
    return HistogramSpec(
        layer=view.usual_layer, tensor=tensor, bits=int(bits), per_channel=per_channel, fold=fold, objective=objective
    )


def histograms_tab(view: RunView) -> None:
    """Show the controls, and the histogram of the picked layer once it is made."""
    if not view.result.spec.model.is_runnable:
        st.info("Imported figures come without a network, so there are no values to look at.", icon=":material/info:")
        return
    spec = choose_histogram(view)
    with errors_here():
        task = HistogramTask(run_id=view.run_id, spec=spec)
        images = fmt.plural(spec.num_images, "image")
        text = md(
            "## {}\n\nLooks at up to {} of this run; a large network takes some seconds. Choose another layer above.",
            _question(spec),
            images,
        )
        histogram = outcome_or_offer(
            task, "Show histogram", "this histogram", key="histogram.start", icon="bar_chart", text=text, kind="primary"
        )
        if histogram is not None:
            _show(histogram, view)


def _question(spec: HistogramSpec) -> str:
    return f"Where do the {spec.tensor} of {spec.layer} lie on the quantization grid, and which matter?"


def _show(histogram: QuantizationHistogram, view: RunView) -> None:
    spec = histogram.spec
    _figures(histogram)
    figure(
        _question(spec),
        histogram_chart(histogram),
        alt_text=f"{spec.tensor} of {spec.layer} on a grid of {spec.bits} bits: {shares_text(histogram)}.",
        key=f"histogram.bars.{view.run_id}",
        caveat=caveat_of(view.result),
        reading="Bars count the values around each grid point, the orange line is how much each place matters, dashed "
        "lines are the means of the cells and, in red, the true range. Where sensitive values crowd into few cells or "
        "vanish into zero, give the layer more bits; scroll to zoom.",
        lines=_lines(histogram, view),
        data=bin_frame(histogram, every_bin=True),
    )
    show_notes(histogram.notes)


def _lines(histogram: QuantizationHistogram, view: RunView) -> tuple[str, str]:
    """Return what is written below the title of the saved pictures."""
    spec = histogram.spec
    settings = [
        f"{spec.tensor} of {spec.layer}",
        f"{spec.bits} bits",
        "one scale per channel" if spec.per_channel else "one scale",
        *(["normalization folded"] if spec.fold and not histogram.notes else []),
    ]
    shares = f"{shares_text(histogram)}, {fmt.plural(histogram.num_images, 'image')}"
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
