"""The blocks of the Analyze page, which fold to one line that says what is filled in."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common.state import session
from senseapp.core.markdown import md
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import DataSpec, ModelSpec, SensitivitySpec
from senseapp.server.demos import PHOTOGRAPHS_DEMO
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import compression_text

_DEMO_NETWORKS = {
    ModelSpec().title: "Demo: a small residual network",
    PHOTOGRAPHS_DEMO.model.title: "Demo: EfficientNet-Lite0",
}
_DATA = {
    "demo": "Demo: handwritten digits",
    "photographs": "Demo: photographs",
    "random": "None: random inputs, indicative only",
}


class Block:
    """A block of the page: a line with its title and what is filled in, and below it, unless folded, the fields.

    Folded fields stay on the page, hidden by ``assets/style.css``: they hold what is filled in.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        with st.container(border=True, gap=None):
            self._head = st.container(
                horizontal=True, wrap=False, horizontal_alignment="distribute", vertical_alignment="center"
            )
            state = "open" if self._is_open else "folded"
            self.fields = st.container(key=f"block_{title.lower()}_{state}")

    @property
    def _is_open(self) -> bool:
        return self._title in session().unfolded

    def summarise(self, line: str) -> None:
        """Show what is filled in; with nothing to show, something is missing, and the block stays open."""
        if not (line or self._is_open):
            self._turn()
            st.rerun()
        with self._head:
            st.markdown(md("**{}**", self._title) + (f" · {line}" if line else ""))
            if line:
                st.button(
                    "Done" if self._is_open else "Change",
                    key=f"block.{self._title.lower()}",
                    type="tertiary",
                    icon=":material/unfold_less:" if self._is_open else ":material/unfold_more:",
                    on_click=self._turn,
                    help=f"{'Folds' if self._is_open else 'Shows'} the fields: {self._title.lower()}.",
                )

    def _turn(self) -> None:
        session().unfolded ^= {self._title}


def model_line(model: ModelSpec | None, profile: ModelProfile | None) -> str:
    """Return what the block of the model is filled in with; empty if it is not."""
    if model is None:
        return ""
    name = model.checkpoint.rsplit("/", 1)[-1] or _DEMO_NETWORKS.get(model.title, model.title)
    if profile is None:
        return name
    return f"{name}, {fmt.count(profile.num_params)} parameters, {fmt.plural(len(profile.layers), 'layer')}"


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
