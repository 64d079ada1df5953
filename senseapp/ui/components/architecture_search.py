"""The search over every architecture of timm and torchvision: a list that follows the keys."""

from __future__ import annotations

import streamlit as st

from senseapp.models.catalogue import CatalogueEntry, find_entry, search
from senseapp.ui import format as fmt
from senseapp.ui.components.notices import complain

_SHOWN = 6
_MOST_FOUND = 200
# Where the browser draws slower than this, two commits overlap and letters are lost: at four times this machine's time
# in half of the words with 20 ms, in none with 100 ms, even at ten times.
_TYPING_PAUSE = "100ms"


def search_architecture(*, default: str, key: str) -> CatalogueEntry | None:
    """Show a search over both libraries; None until one architecture is picked.

    Typing only changes the list: what was picked stays until another is, so that no network is read on the way.

    Args:
        default: title of the architecture that is picked at first, ``timm/resnet18``; empty for none.
        key: what the keys of this search begin with, ``page.action``.
    """
    chosen_key = f"{key}.chosen"
    if chosen_key not in st.session_state:
        st.session_state[chosen_key] = default if _entry(default) else ""
    _pick(default.partition("/")[2], key, chosen_key)
    return _entry(st.session_state[chosen_key])


def _entry(title: str) -> CatalogueEntry | None:
    library, _, name = title.partition("/")
    return find_entry(library, name)


@st.fragment
def _pick(default: str, key: str, chosen_key: str) -> None:
    text = st.text_input(
        "Search",
        value=default,
        placeholder="resnet18, vit tiny, mobilenet …",
        type="search",
        live=_TYPING_PAUSE,
        key=f"{key}.search",
        help="A part of a name, or several: resnet, vit tiny. Both libraries are searched.",
        persist_state="session",
    )
    picked = _list(text or "", st.session_state[chosen_key], key)
    if picked and picked != st.session_state[chosen_key]:
        st.session_state[chosen_key] = picked
        st.rerun()
    if st.session_state[chosen_key]:
        st.caption(f":material/check_circle: Chosen: **{st.session_state[chosen_key]}**")


def _list(text: str, chosen: str, key: str) -> str | None:
    """Show what is found, and return the title that was picked in this list; None for none."""
    if not text:
        st.caption("Type a part of a name, for example resnet18.")
        return None
    found = search(text, limit=_MOST_FOUND)
    if not found:
        complain(
            f"No network of timm or torchvision is called {text!r}. Try a shorter part of the name, such as resnet."
        )
        return None
    shown = found[:_SHOWN]
    titles = [entry.title for entry in shown]
    picked: str | None = st.radio(
        f"Found {fmt.plural(len(found), 'network')}" + (" or more" if len(found) == _MOST_FOUND else ""),
        titles,
        index=titles.index(chosen) if chosen in titles else None,
        captions=[_entry_line(entry) for entry in shown],
        key=f"{key}.entry",
        help="Pick one. Below each name: parameters, multiply-accumulates for one image, input size, layers that can "
        "be compressed, and whether trained weights are published.",
    )
    if len(found) > _SHOWN:
        st.caption(f"The first {_SHOWN} are shown; type more of the name to see others.")
    return picked


def _entry_line(entry: CatalogueEntry) -> str:
    return " · ".join(
        (
            fmt.count(entry.num_params, unit="parameters"),
            fmt.macs(entry.macs) if entry.macs is not None else "MACs unknown",
            f"{fmt.shape(entry.input_shape)} input",
            fmt.plural(entry.num_layers, "layer"),
            "weights available" if entry.pretrained else "no published weights",
        )
    )
