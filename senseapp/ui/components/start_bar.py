"""The bottom of the Analyze page: what will be measured, how long it takes here, and Run."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from senseapp.errors import SenseError
from senseapp.results import ModelProfile
from senseapp.results.counts import counted
from senseapp.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.components.measure_options import matching_layers
from senseapp.ui.components.notices import complain, errors_here
from senseapp.ui.components.waiting import wait_for
from senseapp.ui.state import RUN_PARAMETER, remember_run, session


def start_bar(
    model: ModelSpec | None,
    images: DataSpec | None,
    sensitivity: SensitivitySpec | None,
    profile: ModelProfile | None,
) -> None:
    """Show the plan and the Run button; start the run and go to its page when it is pressed."""
    spec = None
    if model is not None and images is not None and sensitivity is not None:
        spec = RunSpec(model=model, data=images, sensitivity=sensitivity)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        place = st.container(width="stretch")
        pressed = st.button(
            "Run",
            type="primary",
            icon=":material/play_arrow:",
            key="analyze.run",
            disabled=spec is None,
            help=None if spec else "Something above is missing or wrong.",
        )
    with place:
        if spec is None:
            st.caption("Complete the fields above to run.")
            return
        with errors_here():
            st.markdown(_plan(spec, profile))
    if pressed:
        _start(spec)


def _plan(spec: RunSpec, profile: ModelProfile | None) -> str:
    if profile is None:
        return "The time is estimated once the model has been read."
    return plan_text(spec, profile, backend.service().inputs.estimate_time(spec), groups=_groups(spec))


def _groups(spec: RunSpec) -> tuple[tuple[str, ...], ...] | None:
    """Return what pruning takes together; None for other compressions, while it is looked for, and if it fails."""
    if not spec.sensitivity.compression.description.removes_channels:
        return None
    try:
        groups = backend.pruning_groups_of(spec)
    except SenseError:  # the model's card, above, says why
        return None
    if groups is None:
        wait_for(lambda: backend.pruning_groups_of(spec), "Looking which layers are pruned together")
    return groups


def plan_text(
    spec: RunSpec,
    profile: ModelProfile,
    seconds: float | None,
    *,
    groups: tuple[tuple[str, ...], ...] | None = None,
) -> str:
    """Return the plan in one line: ``21 layers × 3 levels on 512 images: about 40 s here``.

    Args:
        spec: of the run.
        profile: of its model.
        seconds: predicted; None if not known.
        groups: the layers that pruning takes together; None if not known.
    """
    settings = spec.sensitivity
    selected = [(layer,) for layer in matching_layers(profile, settings.layers, settings.layer_types)]
    work = f"{counted(selected if groups is None else groups)} × {fmt.plural(len(settings.levels), 'level')}"
    images = f" on {fmt.plural(settings.num_samples, 'image')}" if settings.num_samples else " on all images"
    doing = "estimated from one backward pass" if settings.mode == "quick" else "measured"
    if seconds is None:
        return f"{work}{images}, {doing}; the time is known once the images have been counted."
    shared = settings.mode == "exact" and backend.uses_cluster()
    place = "on this machine alone; the cluster shares it out" if shared else "here"
    return f"{work}{images}, {doing}: **{fmt.about(seconds)}** {place}"


def run_title(spec: RunSpec) -> str:
    """Return the title a run gets at first: the model (or the checkpoint's file) and the compression."""
    model = Path(spec.model.checkpoint).name if spec.model.checkpoint else spec.model.title
    return f"{model} · {spec.sensitivity.compression.description.label.lower()}"


def _start(spec: RunSpec) -> None:
    session().draft = spec
    try:
        run_id = backend.service().start(spec, title=run_title(spec))
    except SenseError as error:
        complain(str(error))
        return
    remember_run(run_id)
    st.switch_page("pages/run.py", query_params={RUN_PARAMETER: run_id})
