"""The Run page: what it shows while a run waits, runs, stops, fails and finishes."""

import threading
import time
from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.errors import InvalidDataset
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.runs.backend import Backend
from senseapp.runs.service import Service
from tests.pages.conftest import open_page

slow = pytest.mark.parametrize("backend", ["slow"], indirect=True)
PAGE = "pages/run.py"


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60  # the first run loads torch
    while not reached():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def texts(app: AppTest) -> str:
    return " ".join(element.value for element in (*app.markdown, *app.caption))


def progress(app: AppTest) -> tuple[int, str]:
    bar = app.get("progress")[0].proto
    return bar.value, bar.text


def test_without_a_run_the_page_says_what_to_do(app: AppTest) -> None:
    open_page(app, PAGE)
    assert "Nothing is being measured" in texts(app)
    app.button[0].click().run()
    assert app.title[0].value == "Which layers can be made smaller?"


@pytest.mark.parametrize("hostile", ["no-such-run", "../../etc/passwd", "x' OR '1'='1", "0" * 32])
def test_an_unknown_run_is_one_sentence(app: AppTest, hostile: str) -> None:
    open_page(app, PAGE, run=hostile)
    assert len(app.error) == 1
    assert not app.exception


def test_a_waiting_run_shows_its_place(app: AppTest, service: Service) -> None:
    service.start(RunSpec())
    second = service.start(RunSpec())
    open_page(app, PAGE, run=second)
    assert progress(app)[1].startswith("2nd in the queue")
    assert app.button(key="run.cancel")


@slow
def test_a_running_run_shows_progress_and_the_bars_so_far(
    app: AppTest, service: Service, gate: threading.Semaphore
) -> None:
    run_id = service.start(RunSpec())
    gate.release(5)
    wait_until(lambda: service.snapshot(run_id).done == 5)
    open_page(app, PAGE, run=run_id)
    percent, text = progress(app)
    assert percent == 27  # 5 of 18
    assert "layer1.0.conv1" in text
    assert "5 of 18 done" in texts(app)
    assert "left" in texts(app)
    assert "**Measured** 5 of 18, the rest **estimated**" in texts(app)
    assert app.selectbox(key=f"run.metric.{run_id}").value == "kl"  # the metric that estimates have
    assert len(app.get("vega_lite_chart")) == 1
    gate.release(3)
    wait_until(lambda: service.snapshot(run_id).done == 8)
    app.run()
    assert progress(app)[0] == 44


@slow
def test_a_finished_run_becomes_its_results_by_itself(
    app: AppTest, service: Service, gate: threading.Semaphore
) -> None:
    run_id = service.start(RunSpec())
    open_page(app, PAGE, run=run_id)
    assert app.button(key="run.cancel")
    gate.release(1000)
    wait_until(lambda: service.run(run_id).state is RunState.DONE)
    app.run()
    assert app.tabs
    assert app.query_params["run"] == run_id


@slow
def test_cancel_keeps_what_was_measured_and_resume_goes_on(
    app: AppTest, service: Service, gate: threading.Semaphore
) -> None:
    run_id = service.start(RunSpec())
    gate.release(4)
    wait_until(lambda: service.snapshot(run_id).done == 4)
    open_page(app, PAGE, run=run_id)
    app.button(key="run.cancel").click().run()
    gate.release(1)  # a run stops where it reports its next measurement
    wait_until(lambda: service.run(run_id).state is RunState.CANCELLED)
    app.run()
    assert "What was measured is kept" in app.warning[0].value
    found = service.result(run_id)
    assert found is not None
    assert len(found.measurements) >= 4
    gate.release(1000)
    app.button(key="run.resume").click().run()
    wait_until(lambda: service.run(run_id).state is RunState.DONE)


def test_the_sidebar_drops_the_run_from_the_link_and_the_page_brings_it_back(app: AppTest, service: Service) -> None:
    run_id = service.start(RunSpec())
    open_page(app, PAGE, run=run_id)
    del app.query_params["run"]
    app.switch_page("pages/guide.py").run()
    app.switch_page(PAGE).run()
    assert app.query_params["run"] == run_id
    assert progress(app)[1].startswith("1st in the queue")


def test_a_failed_run_says_why_and_offers_its_settings_for_a_change(
    app: AppTest, service: Service, backend: Backend
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidDataset("At most 797 images can be measured, 5000 were asked for. Choose fewer.")

    backend._open_session = refuse  # type: ignore[assignment]
    run_id = service.start(RunSpec(sensitivity=SensitivitySpec(num_samples=5000, levels=(0.4,))))
    backend.runner.run_next()
    open_page(app, PAGE, run=run_id)
    assert [error.value for error in app.error] == [
        "At most 797 images can be measured, 5000 were asked for. Choose fewer."
    ]
    app.button(key="run.change").click().run()
    assert app.number_input(key="analyze.options.samples").value == 5000
    assert app.button_group(key="analyze.levels.sparsity").value == [0.4]
    assert not app.exception
