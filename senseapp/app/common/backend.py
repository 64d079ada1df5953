"""The one door from pages to the service: whose service it is, what is cached, what loads in the background.

How often pages that watch ask for news: the more people watch, the less often each of them.
Who the visitor is: the one local person of a server without login, or whoever Streamlit's login says.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

from senseapp.app.logins import logouts, owner_of
from senseapp.compat.streamlit_internals import session_id
from senseapp.engine.cluster.cluster import cluster_address
from senseapp.records.inputs import ImageSurvey, MatchReport, PreviewReport
from senseapp.records.jobs import RunState
from senseapp.records.measurement import SensitivityResult
from senseapp.records.profile import CoupledGroup, ModelProfile
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.runs.checkpoint_report import CheckpointReport
from senseapp.runs.graph_files import GraphFiles
from senseapp.runs.leaderboard import LeaderboardRow
from senseapp.runs.service import LOCAL_OWNER, Service
from senseapp.runs.settings import configured_data_roots

_NOBODY = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """One person.

    Attributes:
        owner: what their runs and uploads belong to; empty for somebody who has not logged in, who owns nothing.
        name: what they are called; empty on a server without login.
    """

    owner: str
    name: str = ""

    @property
    def is_known(self) -> bool:
        """Whether they may start runs and keep them."""
        return bool(self.owner)


def login_is_configured() -> bool:
    """Return whether this server asks people who they are: ``[auth]`` in Streamlit's secrets."""
    return "is_logged_in" in st.user


def visitor() -> Visitor:
    """Return who looks at the page.

    The owner is the issuer and the subject of the login: the only pair of claims that a provider promises never to
    give to somebody else. A mail address can change hands.
    """
    if not login_is_configured():
        return Visitor(owner=LOCAL_OWNER)
    if not st.user.is_logged_in:
        return Visitor(owner=_NOBODY)
    owner = owner_of(st.user.to_dict())
    if not owner or logouts().covers(st.context.cookies):
        return Visitor(owner=_NOBODY)
    return Visitor(owner=owner, name=_name_of(str(st.user["sub"])))


def login_providers() -> list[str]:
    """Return the names of the configured login providers; empty if there is one without a name."""
    configured = st.secrets.get("auth", {})
    if "client_id" in configured:
        return []
    return [name for name, value in configured.items() if isinstance(value, Mapping) and "client_id" in value]


def _name_of(subject: str) -> str:
    known = (st.user.get(claim) for claim in ("name", "preferred_username", "email"))
    return next((str(name) for name in known if name), subject)[:80]


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


def fit_of(model: ModelSpec) -> MatchReport | None:
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


_LOOKS_PER_SECOND = 5.0
_SHORTEST_SECONDS = 1.0
_GONE_SECONDS = 15.0


class Watchers:
    """Who looked lately; safe to use from any thread.

    All together look about five times a second at most: each look costs a few hundredths of a second of the processor
    that also measures.

    Args:
        clock: seconds that never move back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked: dict[str, float] = {}

    def look(self, who: str) -> float:
        """Count a look of ``who``, and return the seconds until the next."""
        now = self._clock()
        with self._lock:
            self._looked[who] = now
            self._looked = {one: then for one, then in self._looked.items() if now - then < _GONE_SECONDS}
            return max(_SHORTEST_SECONDS, len(self._looked) / _LOOKS_PER_SECOND)


@st.cache_resource(show_spinner=False)
def _watchers() -> Watchers:
    return Watchers()


def seconds_to_next_look() -> float:
    """Count a look of this page, and return after how many seconds it should look again."""
    return _watchers().look(session_id())
