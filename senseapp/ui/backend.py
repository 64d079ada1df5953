"""The one door from pages to the service: whose service it is, what is cached, what loads in the background."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st

from senseapp.distributed.cluster import cluster_address
from senseapp.results import ModelProfile, RunState, SensitivityResult
from senseapp.results.coupling import CoupledGroup
from senseapp.service import (
    CheckpointFit,
    CheckpointReport,
    LeaderboardRow,
    PreviewReport,
    Service,
    configured_data_roots,
)
from senseapp.service.graph_files import GraphFiles
from senseapp.spec import DataSpec, ModelSpec, RunSpec
from senseapp.ui.identity import visitor

if TYPE_CHECKING:
    from senseapp.data import ImageSurvey


T = TypeVar("T")

_AFTER_PAINT_SECONDS = 0.7
_KEPT_RESULTS = 8
_KEPT_ANSWERS = 128


def service() -> Service:
    """Return the service of this visitor.

    Raises:
        StorageFailed: the home cannot be used.
    """
    return Service.at(owner=visitor().owner)


def data_roots() -> tuple[Path, ...]:
    """Return the folders of the server that images may be read from."""
    return configured_data_roots()


def uses_cluster() -> bool:
    """Tell whether exact runs go to a cluster."""
    return bool(cluster_address())


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
        InvalidInput: it cannot be loaded; asking again gives the same answer until :func:`forget`.
    """
    owned = service()

    def load() -> ModelProfile:
        profile = owned.inputs.model_card(model)
        owned.inputs.estimate_time(RunSpec(model=model))  # times the machine here, so that no page waits for it
        return profile

    return _ask(("card", model), load)


def pruning_groups_of(spec: RunSpec) -> tuple[tuple[str, ...], ...] | None:
    """Return the layers that a run of pruning takes together, or None while that is found out in the background.

    Raises:
        InvalidInput: the model cannot be loaded.
    """
    owned, settings = service(), spec.sensitivity
    return _ask(
        ("groups", spec.model, settings.layers, settings.layer_types), lambda: owned.inputs.pruning_groups(spec)
    )


def checkpoint_of(path: Path, *, use_ema: bool = False) -> CheckpointReport | None:
    """Return what a checkpoint holds, or None while it is read in the background.

    Raises:
        InvalidCheckpoint: it cannot be used.
    """
    owned = service()
    return _ask(("checkpoint", path, use_ema), lambda: owned.inputs.identify_checkpoint(str(path), use_ema=use_ema))


def fit_of(model: ModelSpec) -> CheckpointFit | None:
    """Return how a checkpoint and one architecture compare, or None while they are compared.

    Raises:
        InvalidInput: they cannot be compared.
    """
    owned = service()
    return _ask(("fit", model), lambda: owned.inputs.compare_checkpoint(model))


def survey_of(data: DataSpec, model: ModelSpec) -> ImageSurvey | None:
    """Return what a folder or archive holds for ``model``, or None while it is listed.

    Raises:
        InvalidInput: the images or the model cannot be used.
    """
    owned = service()
    return _ask(("survey", data, model), lambda: owned.inputs.survey_images(data, model))


def preview_of(spec: RunSpec) -> PreviewReport | None:
    """Return some images as the model sees them, or None while they are prepared.

    Raises:
        InvalidInput: the images or the model cannot be used.
    """
    owned = service()
    return _ask(("preview", spec), lambda: owned.inputs.preview(spec))


def couplings_of(run_id: str) -> tuple[CoupledGroup, ...] | None:
    """Return which layers of a run of pruning shrink together, or None while the model is loaded.

    Raises:
        NotFound: there is no such run for this visitor.
        InvalidInput: the model cannot be loaded any more.
    """
    owned = service()
    return _ask(("couplings", run_id), lambda: owned.schedules.couplings(run_id))


def graph_of(run_id: str) -> GraphFiles | None:
    """Return a run's network as a graph for Model Explorer, or None while it is exported.

    Raises:
        NotFound: there is no such run for this visitor.
        InvalidInput: the model cannot be loaded any more, or not be exported.
    """
    owned = service()
    return _ask(("graph", run_id), lambda: owned.schedules.graph(run_id))


def leaderboard() -> tuple[LeaderboardRow, ...] | None:
    """Return the finished runs side by side, or None while that is worked out."""
    owned = service()
    finished = [record for record in owned.runs() if record.state is RunState.DONE]
    return _ask(("leaderboard", *((record.run_id, record.updated_seconds) for record in finished)), owned.leaderboard)


def forget(*question: Hashable) -> None:
    """Let a question, such as ``("card", model)``, be answered anew the next time."""
    _answers().pop((service().owner, *question), None)


def _ask(question: tuple[Hashable, ...], answer: Callable[[], T]) -> T | None:
    """Return what ``answer`` finds, once a thread has called it; None until then."""
    answers, key = _answers(), (service().owner, *question)
    if key not in answers:
        answers[key] = Future()
        threading.Thread(target=_find, args=(answers[key], answer), name=str(question[0]), daemon=True).start()
        while len(answers) > _KEPT_ANSWERS:
            answers.pop(next(iter(answers)))
    found = answers.get(key)
    return found.result() if found is not None and found.done() else None


@st.cache_resource(show_spinner=False)
def _answers() -> dict[tuple[Hashable, ...], Future[Any]]:
    return {}


def _find(found: Future[T], answer: Callable[[], T]) -> None:
    _let_the_page_paint()
    try:
        found.set_result(answer())
    except BaseException as error:  # whatever it is, the page that waits must hear of it
        found.set_exception(error)


def warm_up_ahead() -> None:
    """Load torch in the background before anybody has come.

    Raises:
        SenseError: the home or a setting of the server cannot be used.
    """
    Service.at().warm_up()


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
