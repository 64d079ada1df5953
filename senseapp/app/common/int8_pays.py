"""Whether int8 pays on this machine, as it is said before a file is made."""

from __future__ import annotations

import streamlit as st

from senseapp.core.markdown import md
from senseapp.records.probe import Int8Prediction


def show_prediction(found: Int8Prediction) -> None:
    """Show whether int8 pays here, by how much, the costliest layers, and the processor's int8 instructions."""
    if found.low >= 1:
        st.warning(found.sentence, icon=":material/speed:")
    else:
        st.caption(md(":material/speed: {}", found.sentence))
    parts = md(", ").join(
        md("{} {:.2f} → {:.2f} ms", part.name, 1000 * part.float_seconds, 1000 * part.int8_seconds)
        for part in found.costly
    )
    if parts:
        st.caption(md("Float → int8: {}. {}", parts, found.machine_sentence))
    else:
        st.caption(found.machine_sentence)
