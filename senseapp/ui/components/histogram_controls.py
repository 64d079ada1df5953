"""Which tensor is looked at, on which grid."""

from __future__ import annotations

import streamlit as st

from senseapp.spec.histogram import HistogramObjective, HistogramSpec, HistogramTensor
from senseapp.ui.components.run_view import RunView
from senseapp.ui.frames import top_frame
from senseapp.ui.state import pick

__all__ = ["choose_histogram"]

_TENSORS: dict[HistogramTensor, str] = {"weights": "Weights", "activations": "Input activations"}
_OBJECTIVES: dict[HistogramObjective, str] = {"output": "Highest score", "loss": "Loss", "none": "Nothing"}


def choose_histogram(view: RunView) -> HistogramSpec:
    """Show the controls; choosing a layer picks it in every view."""
    run_id = view.run_id
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="medium")
    layer = _choose_layer(row, view)
    tensor = row.segmented_control(
        "Values", list(_TENSORS), default="weights", required=True, format_func=_TENSORS.__getitem__,
        key=f"histogram.tensor.{run_id}", persist_state="session",
    )  # fmt: skip
    bits = row.number_input(
        "Bits", 2, 8, 4, key=f"histogram.bits.{run_id}", help="Of the grid; 8 bits have 255 or 256 points.",
        persist_state="session", width=110,
    )  # fmt: skip
    objectives = [name for name in _OBJECTIVES if name != "loss" or view.result.has_labels]
    objective = row.selectbox(
        "Sensitivity to", objectives, format_func=_OBJECTIVES.__getitem__, key=f"histogram.objective.{run_id}",
        help="What is back-propagated to the values: each image's highest class score, or its loss. Nothing is "
        "fastest, and shows the values only.",
        persist_state="session", width=170,
    )  # fmt: skip
    switches = st.container(horizontal=True, gap="medium")
    per_channel = switches.toggle(
        "One scale per channel", key=f"histogram.channel.{run_id}", persist_state="session",
        help="Each channel gets a grid of its own; places are then in steps, not in values.",
    )  # fmt: skip
    fold = switches.toggle(
        "Fold BatchNorm", key=f"histogram.fold.{run_id}", persist_state="session",
        help="Merges the BatchNorm that follows into the layer, as deployment does; the model's output stays.",
    )  # fmt: skip
    return HistogramSpec(
        layer=layer, tensor=tensor, bits=int(bits), per_channel=per_channel, fold=fold, objective=objective
    )


def _choose_layer(row: st.delta_generator.DeltaGenerator, view: RunView) -> str:
    names = [layer.name for layer in view.result.profile.layers]
    fragile = top_frame(view.frame, view.level, 1, fragile=True)
    usual = view.picked or (str(fragile["layer"].iloc[0]) if len(fragile) else names[0])
    key = f"histogram.layer.{view.run_id}.{view.picked}"  # a pick in another view begins anew
    chosen: str = row.selectbox(
        "Layer", names, index=names.index(usual), key=key, width=280,
        on_change=lambda: pick(view.run_id, str(st.session_state[key])),
        help="Picks the layer in every view.",
    )  # fmt: skip
    return chosen
