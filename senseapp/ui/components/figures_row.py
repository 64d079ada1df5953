"""A row of labelled figures that wraps on narrow screens."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st


def figures_row(figures: Mapping[str, str], *, helps: Mapping[str, str] | None = None, key: str) -> None:
    """Show each value in bold under its label; a label with an entry in ``helps`` gets a tooltip."""
    row = st.container(horizontal=True, gap="medium", key=key)
    for label, value in figures.items():
        with row.container(width="content", gap=None):
            st.caption(label, help=(helps or {}).get(label))
            st.markdown(f"**{value}**")
