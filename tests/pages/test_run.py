"""A run's page while it waits, runs, stops, fails and finishes, and what its address says."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.errors import InvalidDataset
from senseapp.records.candidate import Delivery
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.service import Service
from senseapp.store.run_store import INTERRUPTED_SENTENCES
from tests.deployments import a_candidate, some_figures
from tests.pages.conftest import open_layers, open_page, texts
from tests.pages.records import NAMES

slow = pytest.mark.parametrize("backend", ["slow"], indirect=True)
PAGE = "pages/results.py"


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60  # the first run loads torch
    while not reached():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def progress(app: AppTest) -> tuple[int, str]:
    bar = app.get("progress")[0].proto
    return bar.value, bar.text


def test_without_a_run_the_page_says_what_to_do(app: AppTest) -> None:
    open_page(app, PAGE)
    assert "There are no results to show" in texts(app)
    app.button[0].click().run()
    assert app.title[0].value == "What do you need?"


@pytest.mark.parametrize("hostile", ["../../etc/passwd", "0" * 32])
def test_an_unknown_run_is_one_sentence(app: AppTest, hostile: str) -> None:
    open_layers(app, hostile)
    assert len(app.error) == 1
    assert not app.exception


def test_a_waiting_run_shows_its_place(app: AppTest, service: Service) -> None:
    service.start(RunSpec())
    open_layers(app, service.start(RunSpec()))
    assert progress(app)[1].startswith("2nd in the queue")
    assert app.button(key="run.cancel")


def test_the_wait_for_another_run_is_said_in_whole_minutes_so_that_it_does_not_jump(app, service, monkeypatch) -> None:
    service.start(RunSpec())
    second, said = service.start(RunSpec()), set()
    known = service.snapshot(second)
    for seconds in (61.0, 95.0, 72.0, 119.0):
        snapshot = replace(known, behind="another", behind_seconds=seconds)
        monkeypatch.setattr(Service, "snapshot", lambda *_, snapshot=snapshot: snapshot)
        open_layers(app, second)
        said.add(progress(app)[1].partition(". ")[0])
    assert said == {"2nd in the queue, behind the work of somebody else, which ends within about 2 min"}


@slow
def test_a_running_run_shows_progress_and_the_bars_so_far(app, service, gate) -> None:
    run_id = service.start(RunSpec())
    gate.release(5)
    wait_until(lambda: service.snapshot(run_id).done == 5)
    open_layers(app, run_id)
    percent, text = progress(app)
    assert 0 < percent < 100
    assert "Measuring each layer: 5 of 18" in text
    assert "layer1.0.conv1" not in texts(app)  # a detail, for experts
    assert "left" in texts(app)
    assert "**Measured** 5 of 18, the rest estimated" in texts(app)
    assert app.selectbox(key=f"run.metric.{run_id}").value == "kl"  # the metric that estimates have
    (chart,) = app.get("vega_lite_chart")
    drawn = json.loads(chart.proto.spec)
    assert drawn["height"] > 15 * len(NAMES)  # rows keep their height, whatever the screen's
    assert "titleFontSize" not in drawn["config"]["axis"]
    gate.release(3)
    wait_until(lambda: service.snapshot(run_id).done == 8)
    app.run()
    assert progress(app)[0] >= percent
    assert "Measuring each layer: 8 of 18" in progress(app)[1]


@slow
def test_the_chart_keeps_its_metric_and_level_when_the_run_ends(app, another_app, service, gate) -> None:
    run_id = service.start(RunSpec())
    gate.release(5)
    wait_until(lambda: service.snapshot(run_id).done == 5)
    open_layers(app, run_id)
    shown = app.selectbox(key=f"run.metric.{run_id}").value, app.button_group(key=f"run.level.{run_id}").value
    assert shown[0] == "kl"  # the metric of the first bars, which are estimated
    gate.release(1000)
    wait_until(lambda: service.run(run_id).state is RunState.DONE)
    app.run()
    ended = app.selectbox(key=f"results.metric.{run_id}").value, app.button_group(key=f"results.level.{run_id}").value
    assert ended == shown
    again = open_page(another_app(), PAGE, **app.query_params)
    assert again.selectbox(key=f"results.metric.{run_id}").value == shown[0]
    fresh = open_layers(another_app(), run_id)
    assert fresh.selectbox(key=f"results.metric.{run_id}").value == shown[0]


@slow
def test_cancel_keeps_what_was_measured_and_resume_goes_on(app, service, gate) -> None:
    run_id = service.start(RunSpec())
    gate.release(4)
    wait_until(lambda: service.snapshot(run_id).done == 4)
    open_layers(app, run_id)
    app.button(key="run.cancel").click().run()
    gate.release(1)  # a run stops where it reports its next measurement
    wait_until(lambda: service.run(run_id).state is RunState.CANCELLED)
    app.run()
    assert "Resume goes on where it stopped" in app.warning[0].value
    found = service.result(run_id)
    assert found is not None
    assert len(found.measurements) >= 4
    gate.release(1000)
    app.button(key="run.resume").click().run()
    wait_until(lambda: service.run(run_id).state is RunState.DONE)


def test_a_link_opens_the_tab_the_level_and_the_layer_that_it_names(app: AppTest, finished_run: str) -> None:
    open_page(app, PAGE, run=finished_run, tab="heat-map", level="0.25", layer="layer1.0.conv1", metric="top1")
    assert app.session_state[f"results.tab.{finished_run}"] == "Heat map"
    assert app.button_group(key=f"results.level.{finished_run}").value == 0.25
    assert app.selectbox(key=f"results.metric.{finished_run}").value == "top1"
    assert app.selectbox(key=f"results.layer.{finished_run}").value == "layer1.0.conv1"
    kept = {"tab": "heat-map", "level": "0.25", "layer": "layer1.0.conv1", "metric": "top1"}
    assert app.session_state["senseapp.session"].addressed[finished_run] == kept  # links in the sidebar have it


def test_an_address_that_names_nothing_known_shows_the_usual(app: AppTest, finished_run: str) -> None:
    open_layers(app, finished_run, tab="../x", level="1e999", layer="<b>", metric="none")
    assert not app.exception
    assert dict(app.query_params) == {"run": finished_run}


def test_a_failed_run_says_why_and_offers_its_settings_for_a_change(app, service, backend) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidDataset("At most 797 images can be measured, 5000 were asked for. Choose fewer.")

    backend._open_session = refuse  # type: ignore[assignment]
    run_id = service.start(RunSpec(sensitivity=SensitivitySpec(num_samples=5000, levels=(0.4,))))
    backend.runner.run_next()
    open_layers(app, run_id)
    assert [error.value for error in app.error] == [
        "At most 797 images can be measured, 5000 were asked for. Choose fewer."
    ]
    app.button(key="run.change").click().run()
    assert app.number_input(key="analyze.options.samples").value == 5000
    assert app.button_group(key="analyze.levels.sparsity").value == [0.4]
    assert not app.exception


def half_done(service: Service, gate: threading.Semaphore) -> str:
    """Start a run, and return it once two of its layers are measured."""
    run_id = service.start(RunSpec())
    gate.release(2)
    wait_until(lambda: service.snapshot(run_id).done == 2)
    return run_id


@slow
def test_a_running_run_offers_its_first_file(app, service, backend, gate) -> None:
    run_id = half_done(service, gate)
    open_layers(app, run_id)
    assert not app.get("download_button")
    folder = backend.store.folder(run_id)
    original = some_figures(0.0, 1.0, 4000)
    file = a_candidate("int8", size=1200, share=0.5, lost=0.004, metric="top1", original=original)
    folder.save("first", Delivery(candidates=(file,)))
    (folder.path / file.file).write_bytes(bytes(1200))
    app.run()
    assert file.headline in texts(app)
    assert "The run goes on" in texts(app)
    (button,) = app.get("download_button")
    assert button.proto.label.startswith("Get the file that runs")
    assert app.button(key="run.cancel")  # the run goes on


@slow
def test_a_first_file_that_loses_too_much_is_not_offered(app, service, backend, gate) -> None:
    run_id = half_done(service, gate)
    original = some_figures(0.0, 1.0, 4000)
    file = a_candidate("int8", size=1200, share=0.5, lost=0.3, metric="top1", original=original)
    backend.store.folder(run_id).save("first", Delivery(candidates=(file,)))
    open_layers(app, run_id)
    assert not app.get("download_button")
    assert "No file to take yet: No file that is clearly smaller or faster was measured to lose" in texts(app)


def test_a_run_that_a_killed_server_left_says_that_it_is_kept_and_goes_on(app, service, backend) -> None:
    run_id = service.start(RunSpec())
    backend.store.set_state(run_id, RunState.INTERRUPTED, error=INTERRUPTED_SENTENCES[1])
    open_layers(app, run_id)
    assert "Everything measured so far is kept" in texts(app)
    app.button(key="run.resume").click().run()
    backend.runner.run_next()
    assert service.run(run_id).state is RunState.DONE
