"""Every compression estimated on the same model and images, for somebody who is not sure which of them pays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import streamlit as st

from senseapp import descriptions
from senseapp.app.analyze.start import start_run
from senseapp.app.common import backend
from senseapp.app.common.notices import complain, errors_here, waiting_text
from senseapp.app.common.state import session
from senseapp.core.errors import NotFound, SenseError
from senseapp.core.markdown import md
from senseapp.metrics import METRICS, divergence_among
from senseapp.records.jobs import RunState
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import DataSpec, Goal, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.leaderboard import bytes_removable
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import run_title

_POLL_SECONDS = 1.0


def which_pays(model: ModelSpec | None, images: DataSpec | None, profile: ModelProfile | None, goal: Goal) -> None:
    """Offer to estimate every compression; show how far that is, and what each would save."""
    if model is None or images is None:
        st.caption("Choose a model and images first.")
        return
    with errors_here():
        runs = session().trials.get((model, images), ())
        if not runs:
            specs, names = _trials(model, images), fmt.plural(len(descriptions.names()), "compression")
            took = f" ({fmt.about(seconds)})" if profile and (seconds := _seconds(specs)) else ""
            if st.button(f"Estimate all {names}{took}", key="analyze.unsure.start", icon=":material/science:"):
                session().trials[model, images] = tuple(_start(spec) for spec in specs)
                st.rerun()
            return
        records = [backend.service().run(run_id) for run_id in runs]
        if not all(record.state.finished for record in records):
            st.fragment(_watch, run_every=_POLL_SECONDS)(runs)
            return
        for record in records:
            if record.state is not RunState.DONE:
                complain(f"{record.title}: {record.error or 'the estimate was stopped.'}")
        if any(record.state is not RunState.DONE for record in records):
            st.button("Estimate again", key="analyze.unsure.again", on_click=_forget, args=(model, images))
        _answer([result for record in records if (result := backend.result_of(record.run_id)) is not None], goal)


def _trials(model: ModelSpec, images: DataSpec) -> list[RunSpec]:
    """Return a quick estimate of each compression."""
    return [
        RunSpec(
            model=model,
            data=images,
            sensitivity=SensitivitySpec(compression=about.config(), levels=about.scale.default, mode="quick"),
        )
        for about in descriptions.all_descriptions()
    ]


def _seconds(specs: Sequence[RunSpec]) -> float:
    """Return how long the estimates are predicted to take together; 0 where that is not known."""
    each = [backend.service().inputs.estimate_time(spec) for spec in specs]
    return sum(seconds for seconds in each if seconds) if all(each) else 0.0


def _start(spec: RunSpec) -> str:
    return backend.service().start(spec, title=f"{run_title(spec)} (estimate)")


def _forget(model: ModelSpec, images: DataSpec) -> None:
    session().trials.pop((model, images), None)


def _watch(runs: Sequence[str]) -> None:
    """Show how far the estimates are, and the button that stops those that are left."""
    snapshots = [backend.service().snapshot(run_id) for run_id in runs]
    left = [snapshot for snapshot in snapshots if not snapshot.state.finished]
    if not left:
        st.rerun()
    now = next((each for each in left if each.state is RunState.RUNNING), left[0])
    place = 1 + snapshots.index(now)
    text = f"Estimating each compression from one backward pass: {place} of {len(runs)}"
    if now.state is RunState.QUEUED:
        st.progress((len(runs) - len(left)) / len(runs), text=text)
        st.caption(waiting_text(now))
    else:
        parts = [text, now.phase or "Starting", f"{fmt.clock(now.elapsed_seconds)} elapsed"]
        if now.remaining_seconds is not None:
            parts.append(f"{fmt.about(now.remaining_seconds)} left for this one")
        st.progress((len(runs) - len(left) + now.fraction) / len(runs), text=" · ".join(parts))
    st.button("Cancel", key="analyze.unsure.cancel", icon=":material/stop_circle:", on_click=_cancel, args=(runs,))


def _cancel(runs: Sequence[str]) -> None:
    for run_id in runs:
        with suppress(NotFound):  # deleted meanwhile
            if not backend.service().run(run_id).state.finished:
                backend.service().cancel(run_id)


def _answer(results: list[RunResult], goal: Goal) -> None:
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


def _saving(result: RunResult) -> float:
    """Return the largest share of the bytes that is estimated to cost no more than is tolerable; 0 if none is known."""
    metric = divergence_among(result.shown_metrics) or result.metric
    try:
        return bytes_removable(result, metric, allowed=METRICS[metric].notable) or 0.0
    except SenseError:
        return 0.0
