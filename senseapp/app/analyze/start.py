"""The measuring options and the bottom of the Analyze page: the plan with its predicted time, and Run."""

from contextlib import suppress
from typing import Any

import streamlit as st

from senseapp.app.analyze.blocks import DEMOS, choose_one
from senseapp.app.analyze.understood import Understood
from senseapp.app.common import backend
from senseapp.app.common.notices import complain, errors_here, is_refused, wait_for
from senseapp.app.common.state import filled, go_to, session
from senseapp.app.common.texts import LONGEST_TEXT
from senseapp.compat.streamlit_internals import is_first_run
from senseapp.core.errors import InvalidSpec, SenseError
from senseapp.core.markdown import md
from senseapp.core.texts import matcher
from senseapp.descriptions import CompressionDescription
from senseapp.measure.cluster.cluster import cluster_address
from senseapp.records.measurement import counted
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import run_title

_NUMBERS = {
    "num_samples": (
        "Images to measure on",
        "all",
        "Fewer images are faster and give wider intervals. Leave empty for all.",
    ),
    "batch_size": (
        "Images in one batch",
        "chosen by a short trial",
        "Leave empty: a short trial finds what is fast here.",
    ),
}
_CHOICES = {
    "precision": (
        "Precision",
        {
            "fp32": "float32: exact",
            "bf16": "bfloat16: faster on some machines",
            "auto": "Automatic: bfloat16 where it ranks alike",
        },
        "Of the numbers inside the network while measuring. What was used is said beside the results.",
    ),
    "device": (
        "Measure on",
        {
            "auto": "Automatic: a graphics card where there is one",
            "cpu": "Processor",
            "cuda": "NVIDIA graphics card",
            "mps": "Apple graphics processor",
        },
        "What makes the passes through the network. Results name the one that was used.",
    ),
}
_SWITCHES = {
    "until_settled": (
        "Measure until the ranking is settled",
        "Start with few images, and go on only with layers that cannot yet be told apart.",
    ),
    "adapted": (
        "Measure with adapted weights",
        "Give each layer weights that make up, in closed form, for what compression takes from it, and measure those. "
        "For schedules whose weights are adapted when they are checked or deployed.",
    ),
}


def choose_measuring(
    draft: SensitivitySpec, profile: ModelProfile | None, compression: CompressionDescription, available: int | None
) -> dict[str, Any] | None:
    """Return the remaining fields of a SensitivitySpec, with at most ``available`` images; None while one is wrong."""
    layers = _layers(draft, profile)
    found: dict[str, Any] = {}
    for column, (name, (label, placeholder, about)) in zip(st.columns(2), _NUMBERS.items(), strict=True):
        key = f"analyze.options.{name.removeprefix('num_')}"
        look = filled(key, getattr(draft, name)) | {"placeholder": placeholder, "help": about}
        found[name] = column.number_input(label, min_value=1, value=None, step=1, **look)
    if available is not None and (found["num_samples"] or 0) > available:
        st.caption(f"There are {fmt.plural(available, 'image')}: all are used.")
        found["num_samples"] = None
    for column, (name, (label, options, about)) in zip(st.columns(2), _CHOICES.items(), strict=True):
        held = getattr(draft, name)  # the command line has cuda:1
        offered = options | {held: options.get(held, held)}
        with column:
            found[name] = choose_one(label, offered, held, key=f"analyze.options.{name}", help_text=about)
    about = "Of everything drawn at random; the same seed gives the same numbers."
    found["seed"] = int(st.number_input("Seed", min_value=0, help=about, **filled("analyze.options.seed", draft.seed)))
    for name, (label, about) in _SWITCHES.items():
        if name != "adapted" or not compression.removes_channels:
            found[name] = st.toggle(label, help=about, **filled(f"analyze.options.{name}", getattr(draft, name)))
    return None if layers is None else found | {"layers": layers[0], "layer_types": layers[1]}


def matching_layers(profile: ModelProfile, patterns: tuple[str, ...], types: tuple[str, ...]) -> list[str]:
    """Return the layers that fit any pattern and any type, empty for all; raises InvalidSpec for too many patterns."""
    fits = matcher(patterns)
    return [
        layer.name
        for layer in profile.layers
        if (not patterns or fits(layer.name)) and (not types or layer.layer_type in types)
    ]


def _layers(draft: SensitivitySpec, profile: ModelProfile | None) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    text = st.text_input(
        "Layers",
        placeholder="all",
        max_chars=LONGEST_TEXT,
        help="Names of layers; * stands for anything: layer1.*, *.conv2. Separate several by commas. Leave empty for "
        "all layers.",
        **filled("analyze.options.layers", ", ".join(draft.layers)),
    )
    patterns = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    offered = sorted({layer.layer_type for layer in profile.layers} if profile else set()) or list(draft.layer_types)
    types = tuple(
        st.multiselect(
            "Layer types",
            offered,
            placeholder="all",
            help="Measure only layers of these types. Leave empty for all.",
            **filled("analyze.options.types", [name for name in draft.layer_types if name in offered]),
        )
    )
    if profile is None or not (patterns or types):
        return patterns, types
    try:
        found = matching_layers(profile, patterns, types)
    except InvalidSpec as error:
        complain(str(error))
        return None
    if not found:
        some = ", ".join(layer.name for layer in profile.layers[:3])
        complain(f"No compressible layer fits. Layer names of this model look like {some}; * stands for anything.")
        return None
    st.caption(f"{fmt.plural(len(found), 'layer')} of {len(profile.layers)} fit.")
    return patterns, types


def start_bar(asked: RunSpec | None, profile: ModelProfile | None, seen: Understood) -> None:
    """Show the plan, or why there is none, and Run at the foot of the window; start the run ``asked`` for."""
    spec = None if asked is not None and is_refused(lambda: backend.card_of(asked.model)) else asked
    reason = session().complaint or seen.question or f"Run waits for the {'images' if seen.model else 'model'} above."
    if len(reason) > 120:  # characters in a line beside Run; of a longer one the first sentence
        reason = f"{reason.split('. ')[0].rstrip('.')}."
    foot = st.bottom.container(horizontal_alignment="center").container(width=960)
    with foot.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        place = st.container(width="stretch")
        pressed = st.button(
            "Run",
            type="primary",
            icon=":material/play_arrow:",
            key="analyze.run",
            disabled=spec is None,
            help=None if spec else reason,
        )
    with place:
        if spec is None:
            st.caption(reason)
            return
        with errors_here():
            st.markdown(_plan(spec, profile if seen.is_settled else None))
    if pressed:
        start_run(spec)


def offer_demos(asked: RunSpec | None) -> RunSpec | None:
    """Offer the demos beside the first; return the one whose button was pressed. ``asked``: what Run would start."""
    first, *others = DEMOS.values()
    chosen = None
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        filled_in = (
            "A demo that reads handwritten digits is filled in: press Run. Or start one of"
            if asked is not None and (asked.model, asked.data.kind) == (first.spec.model, first.spec.data.kind)
            else "Or a demo:"
        )
        st.markdown(filled_in, width="content")
        for demo in others:
            key = f"analyze.{demo.title.lower()}"
            if st.button(demo.title, key=key, type="tertiary", icon=demo.icon, help=demo.line):
                chosen = demo.spec
            if (seconds := backend.service().inputs.known_time(demo.spec)) is not None:  # its model was read
                st.caption(fmt.about(seconds), width="content")
    return chosen


def _plan(spec: RunSpec, profile: ModelProfile | None) -> str:
    """Return the plan in one line: ``21 layers × 3 levels on 512 images: about 40 s until the file``.

    The time is left open while it is not known; a file is named where files are made by themselves.
    """
    if profile is None:
        return "You can already press Run. The time is predicted once model and images have been read."
    inputs, settings, groups = backend.service().inputs, spec.sensitivity, None
    if settings.compression.description.removes_channels:
        with suppress(SenseError):  # the model's card, above, says why
            groups = backend.pruning_groups_of(spec)
            if groups is None:
                wait_for(lambda: backend.pruning_groups_of(spec), "Looking which layers are pruned together")
    if not inputs.machine_timed:
        wait_for(lambda: inputs.machine_timed or None, "Timing this machine")
    seconds = inputs.estimate_time(spec)
    selected = [(layer,) for layer in matching_layers(profile, settings.layers, settings.layer_types)]
    work = f"{counted(selected if groups is None else groups)} × {fmt.plural(len(settings.levels), 'level')}"
    work += f" on {fmt.plural(settings.num_samples, 'image')}" if settings.num_samples else " on all images"
    doing = "estimated" if settings.mode == "quick" else "measured"
    if seconds is None:
        return f"{work}, {doing}; the time is not known yet."
    place = "until the file" if inputs.files_follow(spec) else "here"
    if settings.mode == "exact" and cluster_address():
        place = "on this machine alone; the cluster shares it out"
    if (before := inputs.levels_before(spec)) == len(settings.levels):
        place += "; measured before: the bars come at once"
    elif before:
        place += f"; {before} of the levels measured before"
    return md("{}, {}: **{}** {}", work, doing, fmt.about(seconds), place)


def start_run(spec: RunSpec) -> None:
    """Start a run and go to its page; say so here if it cannot be started, or was asked for on an earlier page."""
    if is_first_run():
        return
    session().draft = spec
    with errors_here():
        go_to(backend.service().start(spec, title=run_title(spec, [each.title for each in backend.service().runs()])))
