"""Whether int8 pays on this machine, as it is said before a file is made."""

from __future__ import annotations

import streamlit as st

from senseapp.core.markdown import md
from senseapp.records.int8_timing import Int8Timing


def show_int8_timing(found: Int8Timing) -> None:
    """Show whether int8 pays here, by how much, and the processor's int8 instructions."""
    if found.pays:
        st.caption(md(":material/speed: {}", found.sentence))
    else:
        st.warning(found.sentence, icon=":material/speed:")
    st.caption(found.machine_sentence)
