"""The app on a home of its own, with a scripted engine behind the real service."""

import io
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from PIL import Image
from streamlit.components.v2.component_manager import BidiComponentManager
from streamlit.testing.v1 import AppTest, local_script_runner
from streamlit.testing.v1.local_script_runner import LocalScriptRunner

from senseapp.app.common import address
from senseapp.app.common import backend as ui_backend
from senseapp.app.runs.list import table_key
from senseapp.app.schedule import trade_off as trade_off_view
from senseapp.core.codec import dumps
from senseapp.descriptions import SOURCES
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.metrics import METRICS
from senseapp.records.candidate import Candidate, Delivery
from senseapp.records.deployment import DeploySettings
from senseapp.records.inputs import PreviewReport, SeenPicture
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.records.spec import ModelSpec, RunSpec
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import DeliverTask
from senseapp.server.inputs import Inputs
from senseapp.server.process.requester import ANYBODY, Requester
from senseapp.server.service import Service
from senseapp.server.settings import LOCAL_OWNER
from senseapp.solve.methods import make_schedule
from senseapp.solve.trade_off import TradeOffPoint
from senseapp.tasks import TASKS, task_named
from tests.pages.records import a_reading, opener, profile

APP = str(Path(__file__).parents[2] / "app.py")


class ScriptedInputs(Inputs):
    """It knows every model without loading torch."""

    def model_card(self, model: ModelSpec) -> ModelProfile:
        return profile()

    def pruning_groups(self, spec: RunSpec) -> tuple[tuple[str, ...], ...]:
        names = [layer.name for layer in profile().layers if layer.name != "fc"]
        return ((names[0], *names[2:]), (names[1],))

    def preview(self, spec: RunSpec) -> PreviewReport:
        file = io.BytesIO()
        Image.new("L", (96, 96)).save(file, "PNG")
        seen = SeenPicture(name="3/a.png", png=file.getvalue(), label="3", prediction="8")
        score = 0.984 if task_named(spec.model.task).shown_metric else None
        return PreviewReport(reading=a_reading(), pictures=(seen,) * 4, num_scored=256, score=score)

    def estimate_time(self, spec: RunSpec) -> float | None:
        return 40.0


class ScriptedService(Service):
    """The real service, but it knows every model without loading torch."""

    def __init__(self, backend: Backend, owner: str = LOCAL_OWNER, requester: Requester = ANYBODY) -> None:
        super().__init__(backend, owner, requester)
        self.inputs = ScriptedInputs(backend, owner, requester)


@pytest.fixture
def gate() -> threading.Semaphore:
    """Lets one measurement of the ``slow`` engine through each time it is released."""
    return threading.Semaphore(0)


@pytest.fixture
def backend(tmp_path: Path, gate: threading.Semaphore, request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend that works when told to; with the parameter ``"slow"`` in a thread, held by the gate.

    A module that says ``REAL_ENGINE = True`` gets the real engine, in this process: only here is known what tests
    register. A test that asks for ``measured`` gets a copy of a home with the finished runs of its module.
    """
    slow = getattr(request, "param", "") == "slow"
    if getattr(request.module, "REAL_ENGINE", False):
        from senseapp.server.tasks import open_local_session as open_session  # torch loads here
    else:
        open_session = opener(gate if slow else None)
    roots = (tmp_path,)
    if "measured" in request.fixturenames:
        folder, _ = _measured_once(request, open_session)
        shutil.copytree(folder / "home", tmp_path / "home")
        roots = (tmp_path, folder)
    made = Backend(tmp_path / "home", open_session=open_session, workers=1 if slow else 0, data_roots=roots)
    yield made
    gate.release(1000)
    made.close()


_measured: dict[str, tuple[Path, dict[str, str]]] = {}


def _measured_once(request: pytest.FixtureRequest, open_session: Callable[..., Any]) -> tuple[Path, dict[str, str]]:
    """Measure what ``runs_to_measure`` of the module returns, given a folder for files; once for all of its tests."""
    name = request.module.__name__
    if name not in _measured:
        folder = request.getfixturevalue("tmp_path_factory").mktemp("measured")
        made = Backend(folder / "home", open_session=open_session, workers=0, data_roots=(folder,))
        runs = request.module.runs_to_measure(folder).items()
        _measured[name] = folder, {each: finish(Service(made), made, spec) for each, spec in runs}
        made.close()
    return _measured[name]


@pytest.fixture
def measured(backend: Backend, request: pytest.FixtureRequest) -> dict[str, str]:
    """The ids of the finished runs of this module, by the names in its ``runs_to_measure``."""
    return _measured[request.module.__name__][1]


@pytest.fixture
def registries() -> Iterator[None]:
    """Leave the registries of tasks, metrics, sources and runtimes as they were."""
    before = [(registry, dict(registry)) for registry in (TASKS, METRICS, SOURCES, RUNTIMES)]
    yield
    for registry, members in before:
        registry.clear()
        registry.update(members)


@pytest.fixture
def service(backend: Backend) -> Service:
    return ScriptedService(backend)


@pytest.fixture(scope="session")
def components() -> BidiComponentManager:
    """What Streamlit finds when it looks through every installed package, which each new ``AppTest`` would do again."""
    found = BidiComponentManager()
    found.discover_and_register_components(start_file_watching=False)
    return found


@pytest.fixture(scope="session", autouse=True)
def _quick_pages() -> Iterator[None]:
    """Wait for the end of a page's thread, which ``AppTest`` looks for each millisecond; solve each trade-off once."""
    usual, solve, solved = local_script_runner.require_widgets_deltas, trade_off_view.trade_off, {}

    def wait(runner: LocalScriptRunner, timeout: float) -> None:
        runner._script_thread.join(timeout)
        usual(runner, 0.01 if runner.script_stopped() else 0)

    def kept(result: RunResult, *asked: Any, **how: Any) -> tuple[TradeOffPoint, ...]:
        key = dumps(replace(result, seconds=0.0)), repr((asked, how))
        if key not in solved:
            solved[key] = solve(result, *asked, **how)
        return solved[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_script_runner, "require_widgets_deltas", wait)
        patch.setattr(trade_off_view, "trade_off", kept)
        yield


@pytest.fixture
def app(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, components: BidiComponentManager) -> AppTest:
    """The app, before its first run."""
    st.cache_resource.clear()
    monkeypatch.setenv("SENSEAPP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ui_backend, "service", lambda: service)
    monkeypatch.setattr(ui_backend, "_AFTER_PAINT_SECONDS", 0.0)
    return a_session(components)


def a_session(components: BidiComponentManager) -> AppTest:
    """Return a session of the app, before its first run."""
    found = AppTest.from_file(APP, default_timeout=60)
    found._bidi_component_manager = components
    return found


@pytest.fixture
def analyze(app: AppTest) -> AppTest:
    """The Analyze page, once it has read the demo."""
    return wait_for_card(app.run())


@pytest.fixture
def another_app(app: AppTest, components: BidiComponentManager) -> Callable[[], AppTest]:
    """Makes further sessions of the app, as a reload or another tab does."""
    return lambda: a_session(components)


@pytest.fixture
def finished_run(service: Service, backend: Backend) -> str:
    """The id of a finished run of the scripted engine."""
    return finish(service, backend, RunSpec())


@pytest.fixture
def shown_schedule(service: Service, finished_run: str) -> Schedule:
    """The schedule that the Schedule page solves before anything is moved."""
    budget, limits = ResourceBudget(kind="params", target=0.5), Limits(min_level=0.0, max_level=0.9)
    return make_schedule(service.result(finished_run), budget=budget, limits=limits)


@pytest.fixture
def task(shown_schedule: Schedule, finished_run: str) -> DeliverTask:
    """What the button for a file that runs asks for before anything is moved."""
    settings = DeploySettings(kind="quickest", most_changed=0.01)
    return DeliverTask(run_id=finished_run, schedule=shown_schedule, allowed_drop=0.01, settings=settings)


def finish(service: Service, backend: Backend, spec: RunSpec) -> str:
    run_id = service.start(spec)
    while backend.runner.run_next():
        pass
    return run_id


def delivered(service: Service, backend: Backend, task: DeliverTask) -> tuple[Candidate, ...]:
    """Return the files that a task makes."""
    service.work.start(task)
    while backend.runner.run_next():
        pass
    delivery = service.work.outcome(task)
    assert delivery is not None
    return delivery.candidates


def keep(backend: Backend, run_id: str, key: str, *candidates: Candidate, notes: tuple[str, ...] = ()) -> None:
    """Store made-up files of a run as those of the task with this key."""
    folder = backend.store.folder(run_id)
    folder.save(key, Delivery(candidates=candidates, notes=notes))
    for each in candidates:
        (folder.path / each.file).write_bytes(b"onnx" * 1000)


_registered_pages: dict[str, Any] = {}
"""What ``st.navigation`` registers, which an ``AppTest`` knows by itself only once it has shown a page."""


def open_page(app: AppTest, page: str, **query: str) -> AppTest:
    """Open a page of the app by its link."""
    if not _registered_pages:
        # of another session: one that is on that page already reads no link to it
        _registered_pages.update(a_session(app._bidi_component_manager).run()._registered_pages)
    app._registered_pages = _registered_pages
    for name, value in query.items():
        app.query_params[name] = value
    return app.switch_page(page).run()


def texts(app: AppTest) -> str:
    """Return the texts in sight and folded away."""
    kinds = (app.markdown, app.caption, app.info, app.success, app.warning, app.error)
    return " ".join(element.value for kind in kinds for element in kind)


def started(service: Service) -> RunSpec:
    """Return the settings of the newest run."""
    return service.runs()[0].spec


def open_layers(app: AppTest, run_id: str, **query: str) -> AppTest:
    """Open the Results page of a run with the section of its layers unfolded."""
    return open_page(app, "pages/results.py", run=run_id, **{"show-layers": "yes"}, **query)


def go_back(app: AppTest, **query: str) -> AppTest:
    """Rerun the page as the browser's back does, to the address with this query."""
    app.query_params.clear()
    for name, value in query.items():
        app.query_params[name] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(address, "went_through_history", lambda: True)
        return app.run()


def wait_for_card(app: AppTest) -> AppTest:
    """Rerun the page, as its timers would, until everything it asks in the background has been answered."""
    deadline = time.monotonic() + 60  # the first upload loads torch
    while any("hourglass_empty" in caption.value for caption in app.caption):
        assert time.monotonic() < deadline, "the answer never came"
        time.sleep(0.02)
        app.run()
    return app


def tick(app: AppTest, service: Service, *run_ids: str) -> None:
    """Tick runs in the table, as a click does: positions under a key of the table."""
    records = service.runs()
    rows = [place for place, record in enumerate(records) if record.run_id in run_ids]
    app.session_state[table_key(records)] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    app.run()


def selects(app: AppTest) -> list[Any]:
    """Return the selects of Analyze but the first, of where files will run."""
    return [each for each in app.selectbox if each.key != "analyze.target"]
