"""The search over the networks of timm and torchvision: popular ones at once, and what works offline."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common.notices import complain
from senseapp.app.common.state import kept
from senseapp.core.markdown import md
from senseapp.data.downloads import weights_here
from senseapp.networks.sources.catalogue import CatalogueEntry, family_refusal, find_entry, suggest
from senseapp.views.words import format as fmt

_SHOWN = 6  # networks with three lines each, which fit on the page above the next block
_MOST_FOUND = 200  # networks that are ranked; beyond it the count says "or more"


def search_architecture(*, default: str, key: str) -> CatalogueEntry | None:
    """Show a search over both libraries; None until one architecture is picked.

    Typing only changes the list: what was picked stays until another is, so that no network is read on the way.
    ``default`` is the title picked at first (``timm/resnet18``) or empty; widget keys begin with ``key``.
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
        # Where the browser draws slower than this, two commits overlap and letters are lost: at four times this
        # machine's time in half of the words with 20 ms, in none with 100 ms, even at ten times.
        live="100ms",
        **kept(f"{key}.search"),
        help="A part of a name, or several: resnet, vit tiny. Both libraries are searched.",
    )
    here = _weights_here()
    is_offline = st.toggle(
        "Works offline",
        **kept(f"{key}.offline"),
        help="Only networks whose published weights are on this machine already.",
    )
    picked = _list(text or "", here, st.session_state[chosen_key], key, is_offline=is_offline)
    if picked and picked != st.session_state[chosen_key]:
        st.session_state[chosen_key] = picked
        st.rerun()
    if st.session_state[chosen_key]:
        st.caption(md(":material/check_circle: Chosen: **{}**", st.session_state[chosen_key]))


@st.cache_data(show_spinner=False, ttl=30.0, max_entries=1)
def _weights_here() -> frozenset[str]:
    return weights_here()


def _list(text: str, here: frozenset[str], chosen: str, key: str, *, is_offline: bool) -> str | None:
    """Show what is found, and return the title that was picked in this list; None for none."""
    found = suggest(text, lambda entry: not is_offline or entry.weights in here, limit=_MOST_FOUND)
    if not found:
        offline = "No such network has its weights on this machine. Try another name, or turn Works offline off."
        unknown = (
            f"No network of timm or torchvision is called {text!r}. Try a shorter part of the name, such as resnet."
        )
        complain(family_refusal(text) or (offline if is_offline else unknown))
        return None
    shown = found[:_SHOWN]
    titles = [entry.title for entry in shown]
    count = f"Found {fmt.plural(len(found), 'network')}" + (" or more" if len(found) == _MOST_FOUND else "")
    picked: str | None = st.radio(
        count if text else "Popular networks first",
        titles,
        index=titles.index(chosen) if chosen in titles else None,
        captions=[_entry_line(entry, here) for entry in shown],
        key=f"{key}.entry",
        help="Pick one. Below each name: parameters, multiply-accumulates for one image, input size, layers that can "
        "be compressed, and whether trained weights are published, or on this machine already.",
    )
    if len(found) > _SHOWN:
        st.caption(f"The first {_SHOWN} are shown; type more of the name to see others.")
    return picked


def _entry_line(entry: CatalogueEntry, here: frozenset[str]) -> str:
    weights = "works offline" if entry.weights in here else "weights to download"
    return " · ".join(
        (
            fmt.count(entry.num_params, unit="parameters"),
            fmt.count(entry.macs, unit="multiplications") if entry.macs is not None else "Multiplications unknown",
            f"{fmt.shape(entry.input_shape)} input",
            fmt.plural(entry.num_layers, "layer"),
            weights if entry.pretrained else "no published weights",
        )
    )
