"""Every compression estimated on the same model and images, for somebody who is not sure which of them pays."""

from __future__ import annotations

import streamlit as st

from senseapp import compressions
from senseapp.app.analyze.start import run_title, start_run
from senseapp.app.common import backend
from senseapp.app.common.notices import complain, errors_here, wait_for
from senseapp.app.common.state import session
from senseapp.app.words import format as fmt
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.metrics import METRICS, divergence_among
from senseapp.records.jobs import RunState
from senseapp.records.measurement import SensitivityResult
from senseapp.records.spec import DataSpec, Goal, ModelSpec, RunSpec, SensitivitySpec
from senseapp.runs.leaderboard import bytes_removable


def which_pays(model: ModelSpec | None, images: DataSpec | None, goal: Goal) -> None:
    """Offer to estimate every compression; show how far that is, and what each would save."""
    if model is None or images is None:
        st.caption("Choose a model and images first.")
        return
    with errors_here():
        runs = session().trials.get((model, images), ())
        if not runs:
            names = fmt.plural(len(compressions.names()), "compression")
            if st.button(f"Estimate all {names}", key="analyze.unsure.start", icon=":material/science:"):
                _start_trials(model, images)
                st.rerun()
            return
        records = [backend.service().run(run_id) for run_id in runs]
        if not all(record.state.finished for record in records):
            wait_for(lambda: _all_finished(runs), "Estimating each compression from one backward pass")
            return
        for record in records:
            if record.state is not RunState.DONE:
                complain(f"{record.title}: {record.error or 'the estimate was stopped.'}")
        _answer([result for record in records if (result := backend.result_of(record.run_id)) is not None], goal)


def _start_trials(model: ModelSpec, images: DataSpec) -> None:
    """Put a quick estimate of each compression in the queue."""
    started = []
    for about in compressions.all_descriptions():
        sensitivity = SensitivitySpec(compression=about.config(), levels=about.scale.default, mode="quick")
        spec = RunSpec(model=model, data=images, sensitivity=sensitivity)
        started.append(backend.service().start(spec, title=f"{run_title(spec)} (estimate)"))
    session().trials[model, images] = tuple(started)


def _all_finished(runs: tuple[str, ...]) -> bool | None:
    return all(backend.service().run(run_id).state.finished for run_id in runs) or None


def _answer(results: list[SensitivityResult], goal: Goal) -> None:
    """Show what each compression would save, the one that pays most first, with a button that measures it."""
    ranked = sorted(((_saving(result), result) for result in results), key=lambda pair: -pair[0])
    if not ranked:
        return
    best, result = ranked[0]
    label = result.compression.description.label
    metric = METRICS[divergence_among(result.shown_metrics) or result.metric]
    if best > 0:
        st.markdown(md("**By estimate, {} pays most here.**", label.lower()))
    else:
        st.markdown(md("**By estimate, none of them saves anything without changing the answers.**"))
    st.caption(
        f"Estimated, not measured, on {fmt.plural(result.num_samples, 'image')}: bytes that can go, stored compactly, "
        "while the answers hardly move.",
        help=f"{metric.label} of at most {metric.change_text(metric.notable)}. {metric.help}",
    )
    for place, (saving, found) in enumerate(ranked):
        about = found.compression.description
        row = st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute")
        row.markdown(md("**{}**: {} of the bytes. {}", about.label, fmt.percent(saving), about.pays), width="stretch")
        pressed = row.button(
            f"Measure {about.label.lower()}",
            key=f"analyze.unsure.{about.name}",
            type="primary" if place == 0 and saving > 0 else "secondary",
        )
        if pressed:
            measured = SensitivitySpec(compression=found.compression, levels=found.levels)
            start_run(RunSpec(model=found.spec.model, data=found.spec.data, sensitivity=measured, goal=goal))


def _saving(result: SensitivityResult) -> float:
    """Return the largest share of the bytes that is estimated to cost no more than is tolerable; 0 if none is known."""
    metric = divergence_among(result.shown_metrics) or result.metric
    try:
        return bytes_removable(result, metric, allowed=METRICS[metric].notable) or 0.0
    except SenseError:
        return 0.0
