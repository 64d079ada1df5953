"""The blocks of the Analyze page, which fold to one line that says what is filled in."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common.state import session
from senseapp.app.words import format as fmt
from senseapp.app.words.wording import compression_text
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import DataSpec, ModelSpec, SensitivitySpec

_DATA = {
    "demo": "Demo: handwritten digits",
    "photographs": "Demo: photographs",
    "random": "None: random inputs, indicative only",
}


def block(title: str) -> st.delta_generator.DeltaGenerator:
    """Return a block of this title: folded, with what :func:`summarise` said, or open where something is missing."""
    line = session().summaries.get(title)  # None before it was drawn
    key = f"block.{title.lower()}"
    # Set anew each time: the label is part of what the browser knows it by.
    st.session_state[key] = line == "" or st.session_state.get(key, False)
    return st.expander(f"**{title}** · {line}" if line else f"**{title}**", key=key, on_change="rerun")


def summarise(**lines: str) -> None:
    """Keep the lines of the blocks, by title; if they are new, run the page again, so that the blocks show them."""
    before, session().summaries = session().summaries, lines
    if before != lines:
        st.rerun()


def model_line(model: ModelSpec | None, profile: ModelProfile | None) -> str:
    """Return what the block of the model is filled in with; empty if it is not."""
    if model is None:
        return ""
    if profile is None:
        return model.checkpoint.rsplit("/", 1)[-1] or model.title
    return f"{profile.title}, {fmt.count(profile.num_params)} parameters, {fmt.plural(len(profile.layers), 'layer')}"


def images_line(images: DataSpec | None, samples: int | None) -> str:
    """Return what the block of the images is filled in with; empty if it is not."""
    if images is None:
        return ""
    return _DATA.get(images.kind, images.title) + (f", {samples} of them" if samples else "")


def compression_line(sensitivity: SensitivitySpec | None) -> str:
    """Return what the block of the compression is filled in with; empty if it is not."""
    if sensitivity is None:
        return ""
    return compression_text(sensitivity) + (", quick estimate only" if sensitivity.mode == "quick" else "")
