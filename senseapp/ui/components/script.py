"""Running one of our own scripts in a page."""

from __future__ import annotations

import streamlit as st


def run_script(script: str, beside: str = "") -> None:
    """Run one of :data:`~senseapp.ui.inline_scripts.INLINE_SCRIPTS`; the security policy stops any other.

    Args:
        script: without its tag.
        beside: HTML that it finds in the page.
    """
    st.html(f"{beside}<script>{script}</script>", unsafe_allow_javascript=True)
