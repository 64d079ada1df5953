"""Which tensor is looked at, on which grid."""

from __future__ import annotations

import streamlit as st

from senseapp.spec.histogram import HistogramObjective, HistogramSpec, HistogramTensor
from senseapp.tasks import task_named
from senseapp.ui.components.run_view import RunView
from senseapp.ui.frames import top_frame

_TENSORS: dict[HistogramTensor, str] = {"weights": "Weights", "activations": "Input activations"}
_OBJECTIVES: tuple[HistogramObjective, ...] = ("output", "loss", "none")


def choose_histogram(view: RunView) -> HistogramSpec:
    """Show the controls; the layer is the picked one, or the most fragile while none is."""
    run_id = view.run_id
    row = st.container(horizontal=True, vertical_alignment="top", gap="medium")
    tensor = row.segmented_control(
        "Values", list(_TENSORS), default="weights", required=True, format_func=_TENSORS.__getitem__,
        key=f"histogram.tensor.{run_id}", persist_state="session",
    )  # fmt: skip
    bits = row.select_slider(
        "Bits", range(2, 9), 4, key=f"histogram.bits.{run_id}", help="Of the grid; 8 bits have 255 or 256 points.",
        persist_state="session", width=150,
    )  # fmt: skip
    score = task_named(view.result.spec.model.task).score_label
    titles = {"output": score, "loss": "Loss", "none": "Nothing"}
    objectives = [name for name in _OBJECTIVES if name != "loss" or view.result.has_labels]
    objective = row.selectbox(
        "Sensitivity to", objectives, format_func=titles.__getitem__, key=f"histogram.objective.{run_id}",
        help=f"What is back-propagated to the values: each image's {score.lower()}, or its loss. Nothing is "
        "fastest, and shows the values only.",
        persist_state="session", width=160,
    )  # fmt: skip
    switches = row.container(width="content", gap="xxsmall")
    per_channel = switches.toggle(
        "One scale per channel", key=f"histogram.channel.{run_id}", persist_state="session",
        help="Each channel gets a grid of its own; places are then in steps, not in values.",
    )  # fmt: skip
    fold = switches.toggle(
        "Fold BatchNorm", key=f"histogram.fold.{run_id}", persist_state="session",
        help="Merges the BatchNorm that follows into the layer, as deployment does; the model's output stays.",
    )  # fmt: skip
    return HistogramSpec(
        layer=_layer(view), tensor=tensor, bits=int(bits), per_channel=per_channel, fold=fold, objective=objective
    )


def _layer(view: RunView) -> str:
    fragile = top_frame(view.ranked, 1, fragile=True)
    usual = str(fragile["layer"].iloc[0]) if len(fragile) else view.result.profile.layers[0].name
    return view.picked or usual
