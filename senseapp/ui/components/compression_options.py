"""The finer choices of a compression, in "More options", drawn from the metadata of its settings' fields."""

from __future__ import annotations

from typing import Any

import streamlit as st

from senseapp.compressions import CompressionConfig, CompressionDescription, Option, options_of


def choose_config(draft: CompressionConfig, compression: CompressionDescription) -> CompressionConfig:
    """Show the choices of one compression, prefilled with ``draft`` where it is of that kind."""
    held = draft if isinstance(draft, compression.config) else compression.config()
    values: dict[str, Any] = {name: getattr(held, name) for name in options_of(held)}
    for name, option in options_of(held).items():
        if option.when(values):
            values[name] = _choose(option, values[name], key=f"analyze.options.{compression.name}.{name}")
    return compression.config(**values)


def _choose(option: Option, value: Any, *, key: str) -> Any:
    """Show a switch, or a selectbox of named values; one that is not offered (anymore) falls back to the first."""
    values = list(option.choices)
    if option.switch:
        on = st.toggle(option.label, value=value == values[0], key=key, help=option.help, persist_state="session")
        return values[0] if on else values[1]
    chosen = st.selectbox(
        option.label,
        values,
        index=values.index(value),
        format_func=option.choices.__getitem__,
        key=key,
        help=option.help,
        persist_state="session",
    )
    return chosen if chosen in values else values[0]
