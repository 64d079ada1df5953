"""Access of pages to the service: visitor, cached results, answers found in background threads, polling rate."""

import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import streamlit as st

from senseapp.app.logins import logouts, owner_of
from senseapp.compat.streamlit_internals import is_connected, open_sessions, session_id
from senseapp.core.errors import Abandoned, SenseError
from senseapp.records.inputs import ImageSurvey, PreviewReport
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup, ModelProfile
from senseapp.records.recommendation import Recommendation
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.inputs import DETECTION_DEMO, PHOTOGRAPHS_DEMO
from senseapp.server.process.requester import Requester
from senseapp.server.service import Service
from senseapp.server.settings import LOCAL_OWNER
from senseapp.views.frames.comparison import small_bars


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """One person: owner of runs and uploads (empty before login), and name (empty on a server without login)."""

    owner: str
    name: str = ""

    @property
    def is_known(self) -> bool:
        """Whether they may start runs and keep them."""
        return bool(self.owner)

    @property
    def is_operator(self) -> bool:
        """Whether they run this server: everybody without login, else those whom ``SENSEAPP_OPERATORS`` names."""
        return self.owner == LOCAL_OWNER or self.owner in os.environ.get("SENSEAPP_OPERATORS", "").split()


def visitor() -> Visitor:
    """Return who looks at the page.

    The owner is the issuer and the subject of the login: the only pair of claims that a provider promises never to
    give to somebody else. A mail address can change hands.
    """
    if "is_logged_in" not in st.user:  # no [auth] in Streamlit's secrets
        return Visitor(owner=LOCAL_OWNER)
    if not st.user.is_logged_in:
        return Visitor(owner="")
    owner = owner_of(st.user.to_dict())
    if not owner or logouts().covers(st.context.cookies):
        return Visitor(owner="")
    known = (st.user.get(claim) for claim in ("name", "preferred_username", "email"))
    name = next((str(name) for name in known if name), str(st.user["sub"]))
    return Visitor(owner=owner, name=name[:80])


def login_providers() -> list[str]:
    """Return the names of the configured login providers; empty if there is one without a name."""
    configured = st.secrets.get("auth", {})
    if "client_id" in configured:
        return []
    return [name for name, value in configured.items() if isinstance(value, Mapping) and "client_id" in value]


T = TypeVar("T")

_AFTER_PAINT_SECONDS = 0.7  # in which a first page is sent; a longer pause would delay the engine
_KEPT_RESULTS = 8  # results in memory, of all sessions; a ninth run is read from disk again


def service() -> Service:
    """Return the service of this visitor; questions that it asks end when this page is closed."""
    owner, session = visitor().owner, session_id()
    person = owner if owner not in ("", LOCAL_OWNER) else session
    return Service.at(owner=owner, requester=Requester(person=person, is_gone=PageClosed(session)))


class PageClosed:
    """Tells whether the page of a session has been closed for a while; a page that reloads connects again."""

    def __init__(self, session: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._gone_since: float | None = None

    def __call__(self) -> bool:
        """Look once more; asked several times a second."""
        if not self._session or is_connected(self._session):
            self._gone_since = None
            return False
        now = self._clock()
        self._gone_since = now if self._gone_since is None else self._gone_since
        return now - self._gone_since >= 3.0  # a page that is reloaded has connected again by then


def result_of(run_id: str) -> RunResult | None:
    """Return the result of a run, None before there is any; NotFound where this visitor may not see the run."""
    record = service().run(run_id)
    if not record.state.finished:
        return service().result(run_id)
    return _finished_result(run_id, record.owner, record.updated_seconds)


@st.cache_resource(show_spinner=False, max_entries=_KEPT_RESULTS)
def _finished_result(run_id: str, owner: str, updated_seconds: float) -> RunResult | None:
    return service().result(run_id)


def card_of(model: ModelSpec) -> ModelProfile | None:
    """Return the profile of a model, or None while it is loaded; raises as :func:`ask` does, like those below."""

    def load(owned: Service) -> ModelProfile:
        profile = owned.inputs.model_card(model)
        owned.inputs.estimate_time(RunSpec(model=model))  # times the machine here, so that no page waits for it
        return profile

    return ask(("card", model), load)


def pruning_groups_of(spec: RunSpec) -> tuple[tuple[str, ...], ...] | None:
    """Return the layers that a run of pruning takes together, or None while that is found out in the background."""
    settings = spec.sensitivity
    key = "groups", spec.model, settings.layers, settings.layer_types
    return ask(key, lambda owned: owned.inputs.pruning_groups(spec))


def survey_of(data: DataSpec, model: ModelSpec) -> ImageSurvey | None:
    """Return the contents of a folder or archive for ``model``, or None while it is listed."""
    return ask(("survey", data, model), lambda owned: owned.inputs.survey_images(data, model))


def preview_of(spec: RunSpec) -> PreviewReport | None:
    """Return some images as the model sees them, or None while they are prepared."""
    return ask(("preview", spec), lambda owned: owned.inputs.preview(spec))


def couplings_of(run_id: str) -> tuple[CoupledGroup, ...] | None:
    """Return which layers of a run of pruning shrink together, or None while the model is loaded."""
    return ask(("couplings", run_id), lambda owned: owned.work.couplings(run_id))


def bars_of(records: Sequence[RunRecord]) -> dict[str, list[float]] | None:
    """Return the small bars of finished runs by their ids, or None while their results are read."""
    finished = [record for record in records if record.state is RunState.DONE]

    def read(owned: Service) -> dict[str, list[float]]:
        found = {record.run_id: owned.result(record.run_id) for record in finished}
        return {run_id: small_bars(result) for run_id, result in found.items() if result is not None}

    return ask(("bars", *((record.run_id, record.headline) for record in finished)), read)


def recommendation_of(run_id: str) -> Recommendation | None:
    """Return the recommendation of a run; None until it is computed, or if it cannot be read."""
    with suppress(SenseError):  # the top of the Results page says what is wrong
        return service().work.outcome(RecommendationTask(run_id=run_id))
    return None


def forget(*key: Hashable) -> None:
    """Drop the cached answer of a key, such as ``("card", model)``."""
    _answers().pop((service().owner, *key), None)


def ask(key: tuple[Hashable, ...], answer: Callable[[Service], T]) -> T | None:
    """Return what ``answer`` finds with the visitor's service, once a thread has called it; None until then.

    The ``key`` names the question and all that decides its answer, which is kept for it. What ``answer`` raises, mostly
    a SenseError, is kept and raised here too, until :func:`forget` drops it.
    """
    owned = service()
    answers, key = _answers(), (owned.owner, *key)
    if key not in answers:
        answers[key] = Future()
        arguments = key, answers[key], lambda: answer(owned)
        threading.Thread(target=_find, args=arguments, name=str(key[0]), daemon=True).start()
        while len(answers) > 128:  # answers of all sessions, small ones; older ones are computed again
            answers.pop(next(iter(answers)))
    found = answers.get(key)
    return found.result() if found is not None and found.done() else None


@st.cache_resource(show_spinner=False)
def _answers() -> dict[tuple[Hashable, ...], Future[Any]]:
    return {}


def _find(key: tuple[Hashable, ...], found: Future[T], answer: Callable[[], T]) -> None:
    if "torch" not in sys.modules:  # its import holds the interpreter that also serves the page: let it paint first
        time.sleep(_AFTER_PAINT_SECONDS)
    try:
        found.set_result(answer())
    except Abandoned as error:  # by the page that asked; another one that waits asks anew
        _answers().pop(key, None)
        found.set_exception(error)
    except BaseException as error:  # whatever it is, the page that waits must hear of it
        found.set_exception(error)


def warm_up_ahead() -> None:
    """Load torch in the background before the first visitor, and what first pages would wait for."""

    def load_slow_parts() -> None:
        for demo in (PHOTOGRAPHS_DEMO, DETECTION_DEMO):  # whose times are shown
            with suppress(SenseError):  # its run says why
                Service.at().inputs.model_card(demo.model)
        import_module("senseapp.solve.methods")  # with scipy's solver
        import_module("senseapp.views.report.document")

    Service.at().warm_up(also=load_slow_parts)


_LOOKS_PER_SECOND = 5.0  # of all pages together: each look takes time of the processor that measures


def seconds_to_next_look() -> float:
    """Return after how many seconds a page that watches a job should look again, so that all that are open may."""
    return max(1.0, open_sessions() / _LOOKS_PER_SECOND)  # people see no more of progress with more than one a second
