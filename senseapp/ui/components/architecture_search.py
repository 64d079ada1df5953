"""The search over every architecture of timm and torchvision."""

from __future__ import annotations

import streamlit as st

from senseapp.models.catalogue import CatalogueEntry, search
from senseapp.ui import format as fmt
from senseapp.ui.components.notices import complain

__all__ = ["search_architecture"]

_SHOWN = 6
_MOST_FOUND = 200


def search_architecture(*, default: str, key: str) -> CatalogueEntry | None:
    """Show a search over both libraries, prefilled with ``default``; None while nothing is found."""
    text = st.text_input(
        "Search",
        value=default,
        placeholder="resnet18, vit tiny, mobilenet …",
        type="search",
        key=f"analyze.model.{key}.search",
        help="A part of a name, or several: resnet, vit tiny. Both libraries are searched.",
        persist_state="session",
    )
    if not text:
        st.caption("Type a part of a name, for example resnet18.")
        return None
    found = search(text, limit=_MOST_FOUND)
    if not found:
        complain(
            f"No network of timm or torchvision is called {text!r}. Try a shorter part of the name, such as resnet."
        )
        return None
    return _choose_entry(found, key)


def _choose_entry(found: list[CatalogueEntry], key: str) -> CatalogueEntry | None:
    shown = found[:_SHOWN]
    title = st.radio(
        f"Found {fmt.plural(len(found), 'network')}" + (" or more" if len(found) == _MOST_FOUND else ""),
        [entry.title for entry in shown],
        captions=[_entry_line(entry) for entry in shown],
        key=f"analyze.model.{key}.entry",
        help="Parameters, multiply-accumulates for one image, input size, and whether trained weights are published.",
    )
    if len(found) > _SHOWN:
        st.caption(f"The first {_SHOWN} are shown; type more of the name to see others.")
    return next((entry for entry in shown if entry.title == title), shown[0])


def _entry_line(entry: CatalogueEntry) -> str:
    return " · ".join(
        (
            fmt.count(entry.num_params, unit="parameters"),
            fmt.macs(entry.macs) if entry.macs is not None else "MACs unknown",
            f"{fmt.shape(entry.input_shape)} input",
            "weights available" if entry.pretrained else "no published weights",
        )
    )
