"""Measured or estimated, on how many images, with which interval: the line that is on every view of a run."""

from __future__ import annotations

import streamlit as st

from senseapp.results import SensitivityResult
from senseapp.ui import format as fmt
from senseapp.ui.wording import notes_of, provenance_text


def provenance(result: SensitivityResult) -> None:
    """Show the line, and the notes on the run."""
    notes = notes_of(result)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(
            provenance_text(result),
            help="A 95 % interval says where the true change lies, had all images been measured that are like these. "
            "Baseline and compressed model see the same images.",
            width="content",
        )
        if notes:
            with st.popover(f"{fmt.plural(len(notes), 'note')} on this run", type="tertiary", icon=":material/info:"):
                st.markdown("\n".join(f"- {note}" for note in notes))
