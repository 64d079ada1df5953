"""The card of the chosen model, which fills once the model has loaded in the background."""

from __future__ import annotations

import streamlit as st

from senseapp.downloads import weights_so_far
from senseapp.errors import SenseError
from senseapp.models.catalogue import find_entry
from senseapp.results import ModelProfile
from senseapp.spec import ModelSpec
from senseapp.tasks import Task, task_named
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.components.figures_row import figures_row
from senseapp.ui.components.notices import complain
from senseapp.ui.components.waiting import wait_for

_MB = 1_000_000
_BYTES_PER_PARAMETER = 4


def model_card(model: ModelSpec) -> ModelProfile | None:
    """Show the model's figures; None while it loads, or with a sentence if it cannot be loaded."""
    try:
        profile = backend.card_of(model)
    except SenseError as error:
        complain(str(error))
        st.button("Try again", key="analyze.card.again", on_click=backend.forget, args=("card", model))
        return None
    if profile is None:
        wait_for(lambda: backend.card_of(model), lambda: _reading(model))
        return None
    _show(profile, task_named(model.task))
    return profile


def _reading(model: ModelSpec) -> str:
    come = weights_so_far() if model.pretrained else 0
    entry = find_entry(model.library, model.name)
    if not come or entry is None:
        return "Reading the model. You can already press Run."
    whole = entry.num_params * _BYTES_PER_PARAMETER
    return f"Fetching the published weights: {come // _MB:,} of about {whole // _MB:,} MB. You can already press Run."


def _show(profile: ModelProfile, task: Task) -> None:
    figures = {
        "Parameters": fmt.count(profile.num_params),
        "MACs": fmt.count(profile.macs),
        "Size in memory": fmt.bytes_size(profile.num_bytes),
        "Layers": str(len(profile.layers)),
        "Input": fmt.shape(profile.input_shape),
        task.output_title: str(profile.num_classes),
    }
    helps = {
        "MACs": "Multiply-accumulates for one image, of the whole network; its layers do "
        f"{fmt.count(profile.layer_macs)} of them.",
        "Size in memory": "Of all weights and buffers as they are loaded; a checkpoint is about as large.",
        "Layers": "Layers that can be compressed: convolutions and linear layers.",
        "Input": "Channels × height × width.",
    }
    figures_row(figures, helps=helps, key="model_card")
    for note in profile.notes:
        st.caption(f":material/info: {note}")
    if not profile.pretrained:
        st.caption(":material/warning: The weights are random: layer costs are right, sensitivities mean little.")
