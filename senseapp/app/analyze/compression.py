"""Goal of a run, and the block Compression of the Analyze page: compression, options, levels, metric."""

from dataclasses import replace
from typing import Any

import streamlit as st

from senseapp import descriptions
from senseapp.app.analyze.blocks import choose_one
from senseapp.app.analyze.start import choose_measuring
from senseapp.app.common.expert import expert
from senseapp.app.common.notices import complain, show_notes
from senseapp.app.common.state import filled, kept, session
from senseapp.core.errors import InvalidSpec
from senseapp.core.markdown import md
from senseapp.descriptions import CompressionConfig, CompressionDescription, options_of
from senseapp.descriptions.targets import TARGETS, USUAL_TARGET
from senseapp.records.goal import GOAL_LINES, GOALS, makes_files, with_chosen
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import Goal, Mode, SensitivitySpec
from senseapp.server.inputs import usual_settings
from senseapp.tasks import Task

_GOAL_KEY, _KIND_KEY, _METRIC_KEY = "analyze.goal", "analyze.compression.kind", "analyze.metric"
_AUTOMATIC = {"automatic": "Automatic: right answers where many images are labelled, else how far answers move"}
_MORE = "More options"


def choose_config(draft: CompressionConfig, compression: CompressionDescription) -> CompressionConfig:
    """Show the choices of one compression, prefilled with ``draft`` where it is of that kind."""
    held = draft if isinstance(draft, compression.config) else compression.config()
    values: dict[str, Any] = {name: getattr(held, name) for name in options_of(held)}
    for name, option in options_of(held).items():
        if option.when(values):
            key, value = _option_key(compression.name, name), values[name]
            if option.switch:
                on, off = option.choices
                values[name] = on if st.toggle(option.label, help=option.help, **filled(key, value == on)) else off
            else:
                values[name] = choose_one(option.label, option.choices, value, key=key, help_text=option.help)
    return compression.config(**values)


def choose_sensitivity(
    draft: SensitivitySpec, profile: ModelProfile | None, task: Task, *, available: int | None = None
) -> SensitivitySpec | None:
    """Show what is measured, on at most the ``available`` images, prefilled with ``draft``; None while it is wrong."""
    kinds = descriptions.names()
    kind = st.radio(
        "What is done to a layer",
        kinds,
        format_func=lambda name: md("**{}**", descriptions.get(name).label),
        captions=[each.line for each in descriptions.all_descriptions()],
        horizontal=True,
        help="Follows from what you need. One layer at a time is compressed and the loss measured.",
        **filled(_KIND_KEY, draft.compression.kind),
    )
    compression = descriptions.get(kind if kind in kinds else kinds[0])
    levels_place = st.container()
    has_error = _MORE in session().unfolded  # found when the page was drawn last
    is_shown = expert() or has_error
    more = st.container(key=f"block_options_{'open' if is_shown else 'folded'}")  # holds its values where it is hidden
    metric_place = more.container()
    with more.expander(_MORE, expanded=has_error):
        other_levels = st.text_input(
            f"Other levels ({compression.scale.unit}, separated by commas)",
            placeholder=compression.scale.example,
            **kept(f"analyze.levels.other.{compression.name}"),
            help="Added to the levels chosen above.",
        )
        config = choose_config(draft.compression, compression)
        measuring = choose_measuring(draft, profile, compression, available)
    with levels_place:
        levels = _choose_levels(draft, compression, config, other_levels or "")
    with metric_place:
        metric = _choose_metric(draft, task)
    quick = st.toggle(
        "Quick estimate only",
        help="Estimate all layers at once, in seconds. Exact runs show the estimate first, then measure every layer.",
        **filled("analyze.quick", draft.mode == "quick"),
    )
    if levels is None or measuring is None:
        if not has_error:
            session().unfolded |= {_MORE}
            st.rerun()
        return None
    mode: Mode = "quick" if quick else "exact"
    return SensitivitySpec(compression=config, levels=levels, metric=metric, mode=mode, **measuring)


def choose_goal(draft: Goal) -> Goal:
    """Show what the run is for, which chooses compression, levels and metric."""
    goals = list(GOALS)
    chosen = st.radio(
        "What do you need?",
        goals,
        format_func=lambda goal: md("**{}**", GOALS[goal]),
        captions=[GOAL_LINES[goal] for goal in goals],
        horizontal=True,
        on_change=_follow_goal,
        label_visibility="collapsed",
        help="Chooses what is done to the layers, what is made and what Results shows first.",
        width="content",
        **filled(_GOAL_KEY, draft),
    )
    return chosen if chosen in goals else goals[0]


def choose_target(draft: str, goal: Goal) -> str:
    """Show where the files of a ``goal`` will run; the usual target for goals without files."""
    if not makes_files(goal):
        return USUAL_TARGET
    return choose_one(
        "Where will it run?",
        {name: each.label for name, each in TARGETS.items()},
        draft,
        key="analyze.target",
        help_text="Decides the type of the file, and the runtime in which it is measured on this computer.",
        width=216,
    )


def _follow_goal() -> None:
    """Take the settings that a new goal chooses, but for those that a person has changed."""
    goal, draft = st.session_state[_GOAL_KEY], session().draft
    held = session().shown or draft
    usual, found = usual_settings(held.model, draft.goal), held.sensitivity
    kind = found.compression.kind
    for keys, is_usual in (
        ([_KIND_KEY], kind == usual.compression.kind),
        ([_option_key(kind, name) for name in options_of(found.compression)], found.compression == usual.compression),
        ([_levels_key(kind)], found.levels == usual.levels),
        ([_METRIC_KEY], found.metric == usual.metric),
    ):
        for key in keys if is_usual else ():
            st.session_state.pop(key, None)
    chosen = usual_settings(held.model, goal)
    session().draft = replace(draft, goal=goal, sensitivity=with_chosen(draft.sensitivity, chosen))


def say_what_pays(compression: CompressionDescription, goal: Goal) -> None:
    """Show a note if the compression makes no smaller or faster file that runs here, with an alternative."""
    others = [each for each in descriptions.all_descriptions() if each.sets_bits and each.pays_when_run]
    if not makes_files(goal) or compression.pays_when_run or not others:
        return
    text = f"{compression.amount} save no time and no bytes in a file that runs here. “{others[0].line}” saves both."
    show_notes([text])


def _option_key(kind: str, name: str) -> str:
    return f"analyze.options.{kind}.{name}"


def _levels_key(kind: str) -> str:
    return f"analyze.levels.{kind}"


def _choose_levels(
    draft: SensitivitySpec, compression: CompressionDescription, config: CompressionConfig, other: str
) -> tuple[float, ...] | None:
    scale = compression.scale
    held = draft.levels if draft.compression.kind == compression.name else scale.default
    chosen = st.pills(
        "Levels",
        scale.sorted({*scale.choices, *held}),
        selection_mode="multi",
        format_func=scale.text,
        help=compression.levels_help,
        **filled(_levels_key(compression.name), list(held)),
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
        _AUTOMATIC | {name: metric.label for name, metric in offered.items()},
        draft.metric,
        key=_METRIC_KEY,
        help_text=md("Every metric that the images allow is measured; this one decides the order.\n\n")
        + md("\n").join(md("- **{}**: {}", view.label, view.help) for view in offered.values()),
        width=420,
    )
    return chosen if chosen in offered else None
