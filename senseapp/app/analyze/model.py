"""Block 1 of the Analyze page: the choice of the model, and the card with its figures."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import streamlit as st

from senseapp.app.analyze.blocks import DEMOS, choose_one
from senseapp.app.analyze.checkpoint import SOURCE_KEY, choose_checkpoint, search_architecture
from senseapp.app.analyze.onnx_file import TASK_KEY, choose_onnx
from senseapp.app.common import backend
from senseapp.app.common.expert import expert, notes_shown
from senseapp.app.common.notices import answer_or_wait, show_notes
from senseapp.app.common.state import filled, kept, restart_with, session
from senseapp.app.common.tables import figures_row
from senseapp.app.common.uploads import forget_refusal
from senseapp.core.files import MB
from senseapp.core.markdown import md
from senseapp.data.downloads import weights_so_far
from senseapp.descriptions import DENSE_BITS, SOURCES, ModelSource
from senseapp.networks.sources.catalogue import find_entry, task_of_architecture
from senseapp.records.goal import with_goal
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import ModelSpec
from senseapp.server.access import UploadPurpose
from senseapp.tasks import CLASSIFICATION, TASKS, Task, task_named
from senseapp.views.words import format as fmt

_DEMO_KEY = "analyze.model.demo"


def choose_model(draft: ModelSpec) -> ModelSpec | None:
    """Show the model picker, prefilled with ``draft``; None while nothing valid is chosen."""
    runnable = (source for source in SOURCES.values() if source.is_runnable)
    choices = {source.label: _CHOICES.get(source.name) or partial(_named, source) for source in runnable}
    source = SOURCES[draft.library]
    usual = (SOURCES["auto"] if draft.checkpoint and not source.reads else source).label
    chosen = st.segmented_control(
        "Where it comes from",
        list(choices),
        required=True,
        help="The demos need no download. The library holds the networks of timm and "
        "torchvision. Weights of your own fit one of these. A file in .onnx is any network with its weights.",
        **filled(SOURCE_KEY, usual if usual in choices else next(iter(choices))),
    )
    choose = choices.get(chosen, _demo)
    for purpose, uploads in _UPLOADS.items():
        if choose is not uploads:
            forget_refusal(purpose)
    model = choose(draft)
    if model is None or model.library == "demo" or choose is _onnx:  # which need no task, or have one already
        return model
    return with_task(model, draft.task, key=TASK_KEY)


def with_task(model: ModelSpec, draft: str, *, key: str) -> ModelSpec:
    """Show what the network does: what its architecture says, else a choice, prefilled with ``draft``."""
    own = task_of_architecture(model.library, model.name)
    if own in ("", CLASSIFICATION.name):  # such a head may be of several labels
        return replace(model, task=choose_task(draft, key=key))
    st.caption(task_named(own).label)
    return replace(model, task=own)


def choose_task(draft: str, *, key: str) -> str:
    """Show the tasks; return the name of the chosen one."""
    return choose_one(
        "What it does",
        {name: task.label for name, task in TASKS.items()},
        draft,
        key=key,
        help_text="It decides what outputs and labels mean, and which metrics there are. Weights do not tell whether "
        "several labels may be true of an image.",
        width=280,
    )


def _demo(draft: ModelSpec) -> ModelSpec:
    def fill_in() -> None:
        restart_with(with_goal(DEMOS[st.session_state[_DEMO_KEY]].spec, session().draft.goal))

    chosen = st.segmented_control(
        "Demo",
        DEMOS,
        required=True,
        format_func=lambda title: DEMOS[title].title,
        on_change=fill_in,
        help="Fills in the whole page: a network, images for it, and how many to measure on.",
        **filled(_DEMO_KEY, draft.title if draft.title in DEMOS else next(iter(DEMOS))),
    )
    demo = DEMOS.get(chosen) or next(iter(DEMOS.values()))
    st.caption(demo.line)
    return demo.spec.model


def _library(draft: ModelSpec) -> ModelSpec | None:
    entry = search_architecture(default=draft.title if draft.name else "", key="analyze.model.library")
    if entry is None:
        return None
    pretrained = False
    if entry.pretrained:
        pretrained = st.toggle(
            "Use the published weights",
            value=True,
            **kept("analyze.model.pretrained"),
            help="Downloaded once by the library, then kept. Without them the weights are random: layer costs are "
            "right, sensitivities mean little.",
        )
    return ModelSpec(library=entry.library, name=entry.name, pretrained=pretrained)


def _onnx(draft: ModelSpec) -> ModelSpec | None:
    return choose_onnx(draft, lambda: choose_task(draft.task, key=TASK_KEY))


_Choose = Callable[[ModelSpec], ModelSpec | None]
_UPLOADS: dict[UploadPurpose, _Choose] = {"checkpoint": choose_checkpoint, "onnx": _onnx}

_CHOICES: dict[str, _Choose] = {
    "demo": _demo,
    "timm": _library,
    "torchvision": _library,
    "auto": choose_checkpoint,
    "onnx": _onnx,
}


def _named(source: ModelSource, draft: ModelSpec) -> ModelSpec:
    """Choose a network of another package's source, which lists their names."""
    st.caption(source.help)
    names = source.names or ("",)
    name = choose_one(
        "Network",
        {name: name or source.label for name in names},
        draft.name,
        key=f"analyze.model.{source.name}",
        help_text=source.help,
    )
    return ModelSpec(library=source.name, name=name, task=source.task_of(name) or draft.task)


def model_card(model: ModelSpec) -> ModelProfile | None:
    """Show the model's figures; None while it loads, or with a sentence if it cannot be loaded."""
    profile = answer_or_wait(
        lambda: backend.card_of(model), lambda: _reading(model), question=("card", model), key="analyze.card.again"
    )
    if profile is not None:
        _show(profile, task_named(model.task))
    return profile


def _reading(model: ModelSpec) -> str:
    come = weights_so_far() if model.pretrained else 0
    entry = find_entry(model.library, model.name)
    if not come or entry is None:
        return "Reading the model."
    whole = entry.num_params * int(DENSE_BITS) // 8
    return f"Fetching the published weights: {come // MB:,} of about {whole // MB:,} MB."


def _show(profile: ModelProfile, task: Task) -> None:
    figures = {
        "Parameters": fmt.count(profile.num_params),
        **({"Multiplications": fmt.count(profile.macs)} if expert() else {}),
        "Layers": str(len(profile.layers)),
        "Input": fmt.shape(profile.input_shape),
        task.output_title: str(profile.num_classes),
    }
    helps = {
        "Parameters": "Numbers that the network has learned.",
        "Multiplications": "Multiply-accumulates for one image, of the whole network; its layers do "
        f"{fmt.count(profile.layer_macs)} of them.",
        "Layers": "Layers that can be compressed: convolutions and linear layers.",
        "Input": "Channels × height × width.",
    }
    figures_row(figures, helps=helps, key="model_card")
    show_notes(notes_shown(profile.notes, of_bits=session().draft.sensitivity.compression.description.sets_bits))
    if not profile.pretrained:
        st.caption(md(":material/warning: The weights are random: layer costs are right, sensitivities mean little."))
