"""Block 1 of the Analyze page: which network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import streamlit as st

from senseapp.spec import ModelSpec
from senseapp.tasks import TASKS
from senseapp.ui.components.architecture_search import search_architecture
from senseapp.ui.components.checkpoint_choice import choose_checkpoint


def choose_model(draft: ModelSpec) -> ModelSpec | None:
    """Show the model picker, prefilled with ``draft``; None while nothing valid is chosen."""
    labels = [source.label for source in _SOURCES]
    chosen = st.segmented_control(
        "Where it comes from",
        labels,
        default=labels[_source_of(draft)],
        required=True,
        key="analyze.model.source",
        help="The demo is a small network that reads handwritten digits. The library holds the networks of timm and "
        "torchvision. Your own checkpoint is a file of weights.",
        persist_state="session",
    )
    source = next((source for source in _SOURCES if source.label == chosen), _SOURCES[0])
    model = source.choose(draft)
    return model if model is None or model.library == "demo" else replace(model, task=_choose_task(draft.task))


def _choose_task(draft: str) -> str:
    if len(TASKS) == 1:
        return draft
    return st.selectbox(
        "What it does",
        list(TASKS),
        index=list(TASKS).index(draft),
        format_func=lambda name: TASKS[name].label,
        key="analyze.model.task",
        help="It decides what outputs and labels mean, and which metrics there are.",
        persist_state="session",
        width=280,
    )


def _source_of(draft: ModelSpec) -> int:
    if draft.checkpoint:
        return 2
    return 0 if draft.library == "demo" else 1


def _demo(draft: ModelSpec) -> ModelSpec:
    st.caption("A small residual network that reads handwritten digits. It ships with senseapp; nothing to download.")
    return ModelSpec()


def _library(draft: ModelSpec) -> ModelSpec | None:
    entry = search_architecture(default=draft.title if draft.name else "", key="analyze.model.library")
    if entry is None:
        return None
    pretrained = False
    if entry.pretrained:
        pretrained = st.toggle(
            "Use the published weights",
            value=True,
            key="analyze.model.pretrained",
            help="Downloaded once by the library, then kept. Without them the weights are random: layer costs are "
            "right, sensitivities mean little.",
            persist_state="session",
        )
    return ModelSpec(library=entry.library, name=entry.name, pretrained=pretrained)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    label: str
    choose: Callable[[ModelSpec], ModelSpec | None]


_SOURCES = (
    _Source(label="Demo", choose=_demo),
    _Source(label="Library", choose=_library),
    _Source(label="Upload a checkpoint", choose=choose_checkpoint),
)
