"""The one door from pages to the service: whose service it is, what is cached, what loads in the background."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import streamlit as st

from senseapp.results import ModelProfile, SensitivityResult
from senseapp.service import Service, configured_data_roots, uploads_folder
from senseapp.spec import ModelSpec, RunSpec
from senseapp.store import home

__all__ = ["card_of", "data_roots", "forget_card", "result_of", "service", "upload_target", "warm_up"]

_AFTER_PAINT_SECONDS = 0.7
_KEPT_RESULTS = 8
_KEPT_CARDS = 64


def service() -> Service:
    """Return the service of this visitor."""
    return Service.at()


def upload_target() -> Path:
    """Return the folder that this visitor's uploads go to; runs may read from it."""
    return uploads_folder(home(), service().owner)


def data_roots() -> tuple[Path, ...]:
    """Return the folders of the server that images may be read from."""
    return configured_data_roots()


def result_of(run_id: str) -> SensitivityResult | None:
    """Return what a run has found; a finished one is read from disk once.

    Raises:
        NotFound: there is no such run for this visitor.
        InvalidFile: its files are damaged.
    """
    record = service().run(run_id)
    if not record.state.finished:
        return service().result(run_id)
    return _finished_result(run_id, record.owner, record.updated_seconds)


@st.cache_resource(show_spinner=False, max_entries=_KEPT_RESULTS)
def _finished_result(run_id: str, owner: str, updated_seconds: float) -> SensitivityResult | None:
    return service().result(run_id)


def card_of(model: ModelSpec) -> ModelProfile | None:
    """Return what is known about a model, or None while it is loaded in the background.

    Raises:
        InvalidInput: it cannot be loaded; asking again gives the same answer until :func:`forget_card`.
    """
    cards, key = _cards(), (service().owner, model)
    if key not in cards:
        cards[key] = Future()
        arguments = (service(), model, cards[key])
        threading.Thread(target=_load_card, args=arguments, name="model-card", daemon=True).start()
        while len(cards) > _KEPT_CARDS:
            cards.pop(next(iter(cards)))
    return cards[key].result() if cards[key].done() else None


def forget_card(model: ModelSpec) -> None:
    """Let the next :func:`card_of` load the model anew."""
    _cards().pop((service().owner, model), None)


@st.cache_resource(show_spinner=False)
def _cards() -> dict[tuple[str, ModelSpec], Future[ModelProfile]]:
    return {}


def _load_card(owned: Service, model: ModelSpec, card: Future[ModelProfile]) -> None:
    _let_the_page_paint()
    try:
        profile = owned.model_card(model)
        owned.estimate_time(RunSpec(model=model))  # times the machine here, so that no page waits for it
        card.set_result(profile)
    except BaseException as error:  # whatever it is, the page that waits for the card must hear of it
        card.set_exception(error)


def warm_up() -> None:
    """Load torch in the background, once per process, when the first page is up."""
    _warming(service().owner)


@st.cache_resource(show_spinner=False)
def _warming(owner: str) -> threading.Thread:
    thread = threading.Thread(target=_warm, args=(service(),), name="warm-up", daemon=True)
    thread.start()
    return thread


def _warm(owned: Service) -> None:
    _let_the_page_paint()
    owned.warm_up()


def _let_the_page_paint() -> None:
    """Wait a moment before torch is imported: its import holds the interpreter that also serves the page."""
    if "torch" not in sys.modules:
        time.sleep(_AFTER_PAINT_SECONDS)
