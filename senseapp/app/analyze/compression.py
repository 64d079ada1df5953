"""Block 3 of the Analyze page: compression, options, levels, metric; and all compressions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import streamlit as st

from senseapp import descriptions
from senseapp.app.analyze.blocks import choose_one
from senseapp.app.analyze.model import GOAL_KEY
from senseapp.app.analyze.start import choose_measuring, start_run
from senseapp.app.common import backend
from senseapp.app.common.int8_pays import show_prediction
from senseapp.app.common.notices import POLL_SECONDS, complain, errors_here, waiting_text
from senseapp.app.common.state import session
from senseapp.core.errors import InvalidSpec, NotFound, SenseError
from senseapp.core.markdown import md
from senseapp.descriptions import CompressionConfig, CompressionDescription, Option, options_of
from senseapp.metrics import METRICS, divergence_among
from senseapp.records.goal import GOALS, Goal
from senseapp.records.jobs import RunState
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import DataSpec, Mode, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.leaderboard import bytes_removable
from senseapp.tasks import Task
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import run_title


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
            st.fragment(_watch, run_every=POLL_SECONDS)(runs)
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


def choose_config(draft: CompressionConfig, compression: CompressionDescription) -> CompressionConfig:
    """Show the choices of one compression, prefilled with ``draft`` where it is of that kind."""
    held = draft if isinstance(draft, compression.config) else compression.config()
    values: dict[str, Any] = {name: getattr(held, name) for name in options_of(held)}
    for name, option in options_of(held).items():
        if option.when(values):
            values[name] = _choose(option, values[name], key=f"analyze.options.{compression.name}.{name}")
    return compression.config(**values)


def _choose(option: Option, value: Any, *, key: str) -> Any:
    """Show a switch, or a selectbox of named values; one that is not offered (anymore) falls back to the first."""
    if option.switch:
        values = list(option.choices)
        on = st.toggle(option.label, value=value == values[0], key=key, help=option.help, persist_state="session")
        return values[0] if on else values[1]
    return choose_one(option.label, option.choices, value, key=key, help_text=option.help)


UNSURE: Literal["unsure"] = "unsure"
_AUTOMATIC_LABEL = "Automatic: right answers where many images are labelled, else harm"
_AUTOMATIC = "automatic"


def choose_sensitivity(
    draft: SensitivitySpec, profile: ModelProfile | None, task: Task, *, available: int | None = None
) -> SensitivitySpec | Literal["unsure"] | None:
    """Show everything that is measured and how, prefilled with ``draft``; None while a field is wrong.

    Nothing more is asked of somebody who is not sure which compression to choose: that is :data:`UNSURE`. No more
    images are taken than are ``available``, where that is known.
    """
    kinds = (*descriptions.names(), UNSURE)
    kind = st.radio(
        "What is done to a layer",
        kinds,
        index=kinds.index(draft.compression.kind),
        format_func=lambda name: md("**{}**", "Not sure" if name == UNSURE else descriptions.get(name).label),
        captions=[*(each.line for each in descriptions.all_descriptions()), "Estimate all of them, see which pays"],
        horizontal=True,
        key="analyze.compression.kind",
        help="One layer at a time is compressed and the damage measured; the others stay as they are.",
        persist_state="session",
    )
    if kind == UNSURE:
        return UNSURE
    compression = descriptions.get(kind if kind in kinds else kinds[0])
    levels_place, metric_place = st.container(), st.container()
    with st.expander("More options"):
        other_levels = _other_levels(compression)
        config = choose_config(draft.compression, compression)
        measuring = choose_measuring(draft, profile, compression)
    with levels_place:
        levels = _choose_levels(draft, compression, config, other_levels)
    with metric_place:
        metric = _choose_metric(draft, task)
    quick = st.toggle(
        "Quick estimate only",
        value=draft.mode == "quick",
        key="analyze.quick",
        help="Estimate all layers at once from one backward pass, in seconds. Exact runs show the estimate first and "
        "then measure every layer.",
        persist_state="session",
    )
    if levels is None or measuring is None or _are_too_many(measuring["num_samples"], available):
        return None
    mode: Mode = "quick" if quick else "exact"
    return SensitivitySpec(compression=config, levels=levels, metric=metric, mode=mode, **measuring)


def choose_goal(draft: Goal) -> Goal:
    """Show what the run is for, which decides the file that is recommended."""
    goals = list(GOALS)
    chosen = st.segmented_control(
        "What is this for?",
        goals,
        default=draft,
        required=True,
        format_func=lambda goal: GOALS.get(goal, str(goal)),
        key=GOAL_KEY,
        help="Which of the measured files is recommended: the smallest, the fastest on this machine, or the strongest "
        "schedule for a tool that trains the network further. It can be changed on Results.",
        persist_state="session",
    )
    return chosen if chosen in goals else goals[0]


def say_what_pays(compression: CompressionDescription, goal: Goal) -> None:
    """Show a note if the compression makes no smaller or faster file that runs here, with an alternative."""
    others = [each for each in descriptions.all_descriptions() if each.sets_bits and each.pays_when_run]
    if goal == "targets" or compression.pays_when_run or not others:
        return
    st.caption(
        md(
            ":material/info: {} save no time and no bytes in a file that runs here. “{}” saves both.",
            compression.amount,
            others[0].line,
        )
    )


def offer_int8_prediction(
    model: ModelSpec | None, profile: ModelProfile | None, compression: CompressionDescription
) -> None:
    """Offer to predict what a file in int8 takes on this machine, and show it; for compressions that make one."""
    if model is None or profile is None or not compression.sets_bits:
        return
    known = session().int8.get(model)
    if known is not None:
        show_prediction(known)
        return
    label = "Does int8 pay on this machine?"
    hint = "Times the layers of this network in float and in int8, by their shapes alone: some ten seconds."
    if st.button(label, key="analyze.int8", icon=":material/speed:", type="tertiary", help=hint):
        with errors_here(), st.spinner("Timing layers in float and in int8"):
            session().int8[model] = backend.service().inputs.predict_int8(model)
            st.rerun()


def _are_too_many(asked: int | None, available: int | None) -> bool:
    """Return whether more images are asked for than there are, and say so."""
    if asked is None or available is None or asked <= available:
        return False
    complain(
        f"There are {available:,} images, and {asked:,} are asked for under More options. Choose at most "
        f"{available:,}, or leave the field empty."
    )
    return True


def _other_levels(compression: CompressionDescription) -> str:
    return st.text_input(
        f"Other levels ({compression.scale.unit}, separated by commas)",
        placeholder=compression.scale.example,
        key=f"analyze.levels.other.{compression.name}",
        help="Added to the levels chosen above.",
        persist_state="session",
    ) or ""  # fmt: skip


def _choose_levels(
    draft: SensitivitySpec, compression: CompressionDescription, config: CompressionConfig, other: str
) -> tuple[float, ...] | None:
    scale = compression.scale
    held = draft.levels if draft.compression.kind == compression.name else scale.default
    chosen = st.pills(
        "Levels",
        scale.sorted({*scale.choices, *held}),
        selection_mode="multi",
        default=list(held),
        format_func=scale.text,
        key=f"analyze.levels.{compression.name}",
        help=compression.levels_help,
        persist_state="session",
    )
    try:
        typed = scale.parse(other, what="Other levels") if other.strip() else ()
        return SensitivitySpec(compression=config, levels=tuple(sorted({*chosen, *typed}))).levels
    except InvalidSpec as error:
        complain(str(error))
        return None


def _choose_metric(draft: SensitivitySpec, task: Task) -> str | None:
    offered = {metric.name: metric for metric in task.own_metrics if not metric.proof_only}
    chosen = choose_one(
        "Metric that ranks the layers",
        {_AUTOMATIC: _AUTOMATIC_LABEL} | {name: metric.label for name, metric in offered.items()},
        draft.metric,
        key="analyze.metric",
        help_text=md("Every metric that the images allow is measured; this one decides the order.\n\n")
        + md("\n").join(md("- **{}**: {}", view.label, view.help) for view in offered.values()),
        width=420,
    )
    return chosen if chosen in offered else None
