"""Sentences beside what they are about: errors at their field, empty states with the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import streamlit as st

from senseapp.errors import SenseError


def complain(message: str) -> None:
    """Show what is wrong with the field above."""
    st.error(message, icon=":material/error:")


@contextmanager
def errors_here() -> Iterator[None]:
    """Show a SenseError raised in the body at this place of the page and go on; anything else passes through."""
    try:
        yield
    except SenseError as error:
        complain(str(error))


def empty_state(title: str, text: str, *, button: str, page: str, level: Literal[1, 2] = 2) -> None:
    """Say that there is nothing here yet and what to do next; ``level`` is that of ``title`` among the headings."""
    with st.container(border=True, horizontal_alignment="center", gap="small"):
        st.space("small")
        st.markdown(f"{'#' * level} {title}", text_alignment="center")
        st.markdown(text, text_alignment="center")
        if st.button(button, type="primary"):
            st.switch_page(page)
        st.space("small")
