"""The search over the networks of timm and torchvision: popular ones at once, filters, what works offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from senseapp.app.common.notices import complain
from senseapp.core.markdown import md
from senseapp.data.downloads import weights_here
from senseapp.networks.sources.catalogue import CatalogueEntry, family_refusal, find_entry, suggest, tasks_in_catalogue
from senseapp.tasks import CLASSIFICATION, task_named
from senseapp.views.words import format as fmt

_SHOWN = 6  # networks with three lines each, which fit on the page above the next block
_MOST_FOUND = 200  # networks that are ranked; beyond it the count says "or more"
# Where the browser draws slower than this, two commits overlap and letters are lost: at four times this machine's time
# in half of the words with 20 ms, in none with 100 ms, even at ten times.
_TYPING_PAUSE = "100ms"
_LOOK_SECONDS = 30.0  # between two looks at what is in the caches
_SIZES = {"Any size": 0, "Up to 5 M parameters": 5, "Up to 15 M": 15, "Up to 30 M": 30, "Up to 100 M": 100}
"""Millions of parameters; 0 for any number."""
_ANY, _CLASSES, _FEATURES = "Any task", "Classes", "Features"
"""Besides them, the labels of the tasks that architectures are made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filters:
    """What a network must be like.

    Attributes:
        most_millions: of parameters; 0 for any number.
        task: one of :func:`_tasks`.
        offline: whether its weights must be on this machine.
        here: the weights that are.
    """

    most_millions: int
    task: str
    offline: bool
    here: frozenset[str]

    def fit(self, entry: CatalogueEntry) -> bool:
        """Whether ``entry`` passes."""
        small = not self.most_millions or entry.num_params <= 1_000_000 * self.most_millions
        return small and self._does(entry) and (entry.weights in self.here or not self.offline)

    def _does(self, entry: CatalogueEntry) -> bool:
        if self.task in (_ANY, _CLASSES, _FEATURES):
            return self.task == _ANY or (entry.classifies if self.task == _CLASSES else entry.returns_features)
        return task_named(entry.task).label == self.task


def _tasks() -> list[str]:
    others = (task_named(name).label for name in tasks_in_catalogue() if name != CLASSIFICATION.name)
    return [_ANY, _CLASSES, *others, _FEATURES]


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
        live=_TYPING_PAUSE,
        key=f"{key}.search",
        help="A part of a name, or several: resnet, vit tiny. Both libraries are searched.",
        persist_state="session",
    )
    picked = _list(text or "", _choose_filters(key), st.session_state[chosen_key], key)
    if picked and picked != st.session_state[chosen_key]:
        st.session_state[chosen_key] = picked
        st.rerun()
    if st.session_state[chosen_key]:
        st.caption(md(":material/check_circle: Chosen: **{}**", st.session_state[chosen_key]))


def _choose_filters(key: str) -> _Filters:
    row = st.container(horizontal=True, vertical_alignment="center")

    def choose(label: str, options: Sequence[str], name: str) -> str:
        chosen: str = row.selectbox(
            label,
            options,
            key=f"{key}.{name}",
            label_visibility="collapsed",
            width=210,
            persist_state="session",
        )
        return chosen

    millions = _SIZES.get(choose("Size", list(_SIZES), "size"), 0)
    task = choose("Task", _tasks(), "task")
    offline = row.toggle(
        "Works offline",
        key=f"{key}.offline",
        help="Only networks whose published weights are on this machine already.",
        persist_state="session",
    )
    return _Filters(most_millions=millions, task=task, offline=offline, here=_weights_here())


@st.cache_data(show_spinner=False, ttl=_LOOK_SECONDS, max_entries=1)
def _weights_here() -> frozenset[str]:
    return weights_here()


def _list(text: str, filters: _Filters, chosen: str, key: str) -> str | None:
    """Show what is found, and return the title that was picked in this list; None for none."""
    found = suggest(text, filters.fit, limit=_MOST_FOUND)
    if not found:
        complain(_nothing(text, filters))
        return None
    shown = found[:_SHOWN]
    titles = [entry.title for entry in shown]
    count = f"Found {fmt.plural(len(found), 'network')}" + (" or more" if len(found) == _MOST_FOUND else "")
    picked: str | None = st.radio(
        count if text else "Popular networks first",
        titles,
        index=titles.index(chosen) if chosen in titles else None,
        captions=[_entry_line(entry, filters.here) for entry in shown],
        key=f"{key}.entry",
        help="Pick one. Below each name: parameters, multiply-accumulates for one image, input size, layers that can "
        "be compressed, and whether trained weights are published, or on this machine already.",
    )
    if len(found) > _SHOWN:
        st.caption(f"The first {_SHOWN} are shown; type more of the name to see others.")
    return picked


def _nothing(text: str, filters: _Filters) -> str:
    if refused := family_refusal(text):
        return refused
    named = f" called {text!r}" if text else ""
    if not filters.offline and not filters.most_millions and filters.task == _ANY:
        return f"No network of timm or torchvision is{named}. Try a shorter part of the name, such as resnet."
    others = " whose weights are on this machine" if filters.offline else ""
    return f"No network{named}{others} passes the filters. Take one of them back."


def _entry_line(entry: CatalogueEntry, here: frozenset[str]) -> str:
    weights = "works offline" if entry.weights in here else "weights to download"
    return " · ".join(
        (
            fmt.count(entry.num_params, unit="parameters"),
            fmt.macs(entry.macs) if entry.macs is not None else "Multiplications unknown",
            f"{fmt.shape(entry.input_shape)} input",
            fmt.plural(entry.num_layers, "layer"),
            weights if entry.pretrained else "no published weights",
        )
    )
