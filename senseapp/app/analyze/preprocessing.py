"""Which preprocessing the images chose, what else was tried, and the choice of another."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from senseapp.records.preparation import PreparationChoice
from senseapp.records.spec import RunSpec


def choose_preprocessing(choice: PreparationChoice) -> RunSpec:
    """Show what was tried and how it did, the chosen one first; return the settings that are left or picked."""
    if choice.chosen is None:
        return choice.spec
    icon = "help" if choice.guess else "check_circle"
    st.caption(f":material/{icon}: {choice.verdict}")
    for caveat in choice.caveats:
        st.caption(f":material/info: {caveat}")
    if len(choice.trials) < 2:
        return choice.spec
    trials = {trial.title: trial for trial in sorted(choice.trials, key=lambda trial: trial != choice.chosen)}
    picked = st.selectbox(
        "Preprocessing",
        list(trials),
        format_func=lambda title: f"{title} · {trials[title].result}",
        key=f"analyze.data.preprocessing.{_place(choice.spec.model.checkpoint)}.{_place(choice.spec.data.path)}",
        help="Ways to prepare the images, tried on some of them. The chosen one comes first, the others by how well "
        "the model answers.",
        persist_state="session",
    )
    trial = trials.get(picked, choice.chosen)
    return choice.spec if trial == choice.chosen else trial.spec


def _place(path: str) -> str:
    """Return what tells uploads apart; a key is seen in the browser, and where files lie is not to be."""
    return Path(path).parent.name
