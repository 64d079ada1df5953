"""A selectbox that keeps its value for the session, for the blocks of the Analyze page."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import streamlit as st

T = TypeVar("T", bound=Hashable)


def choose_one(
    label: str, options: Mapping[T, str], held: object, *, key: str, help_text: str, width: int | None = None
) -> T:
    """Show ``options`` (value to its text), prefilled with ``held``; a value that is not offered becomes the first."""
    values = list(options)
    chosen = st.selectbox(
        label,
        values,
        index=next((index for index, value in enumerate(values) if value == held), 0),
        format_func=lambda value: options.get(value, str(value)),  # a value kept for the session may be gone
        key=key,
        help=help_text,
        persist_state="session",
        width=width or "stretch",
    )
    return chosen if chosen in options else values[0]
