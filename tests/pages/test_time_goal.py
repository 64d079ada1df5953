"""Milliseconds as the goal on the Schedule page: times measured here or from files, a limit, the trade-off."""

import json
import re
from functools import partial

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.compressions import QuantizationConfig
from senseapp.records.deployment import FLOAT, INT8, Conversion, LayerTime, LayerTimes
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.process.requester import WorkerRequest, answer_here, decode_task, encode_task
from senseapp.server.run_requests import read_times
from senseapp.server.run_tasks import TimingTask
from senseapp.server.service import Service
from tests.pages.conftest import finish, open_page, texts
from tests.pages.records import NAMES
from tests.pages.test_schedule import specs

PAGE = "pages/targets.py"


@pytest.fixture
def run_id(service: Service, backend: Backend) -> str:
    spec = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4)))
    return finish(service, backend, spec)


def in_milliseconds(app: AppTest, run_id: str) -> AppTest:
    open_page(app, PAGE, run=run_id)
    app.selectbox(key=f"goal.{run_id}").set_value("ms").run()
    assert not app.exception
    return app


def some_times() -> LayerTimes:
    """Each layer takes 2 ms, 1 ms in int8; int8 anywhere costs .5 ms."""
    levels = {32.0: 2e-3, 8.0: 1e-3}
    return LayerTimes(
        times=tuple(
            LayerTime(layer=name, level=level, seconds=each) for name in NAMES for level, each in levels.items()
        ),
        conversions=(Conversion(first=FLOAT, second=INT8, seconds=5e-4),),
        source="measured on a made-up machine",
    )


def test_layers_are_timed_on_request_and_milliseconds_are_the_goal(app, run_id, service, backend) -> None:
    in_milliseconds(app, run_id)
    task = TimingTask(run_id=run_id)
    assert decode_task(encode_task(task)) == task  # as the job's process is told
    assert not [slider for slider in app.slider if slider.label.startswith("Milliseconds")]
    app.button(key=f"schedule.times.{run_id}").click().run()
    assert service.work.progress(task).state is RunState.QUEUED
    app.button(key=f"schedule.times_stop.{run_id}").click().run()
    backend.store.folder(run_id).save(task.key, some_times())
    app.run()
    assert not app.exception
    as_it_is = 2 * len(NAMES)
    assert f"{as_it_is} ms as it is, {len(NAMES) + 0.5:g} ms at least" in texts(app)
    app.slider(key=f"schedule.ms.{run_id}").set_value(as_it_is - 2.0).run()
    assert not app.error
    reached = re.search(rf"\b{as_it_is} → ([0-9.]+)", texts(app))
    assert reached is not None
    assert float(reached[1]) <= as_it_is - 2
    assert "Predicted milliseconds of a call" in "".join(specs(app))


def test_a_file_of_times_is_read_in_a_process_of_its_own(service, run_id) -> None:
    result = service.result(run_id)
    compression = result.spec.sensitivity.compression
    content = f"layer,level,ms\n{NAMES[0]},8,1\n".encode()
    asked = WorkerRequest(call=partial(read_times, content, "t.csv", result.profile, compression, None))
    assert asked.decoded(answer_here(asked.encoded())) == asked.call()


def test_times_of_files_are_read_or_refused_in_one_sentence(app, run_id) -> None:
    in_milliseconds(app, run_id)
    app.button_group(key=f"times.{run_id}").set_value("From files").run()
    rows = [f"{name},{level},{2 if level else 4}" for name in NAMES for level in (0, 8)]
    times = app.file_uploader(key=f"schedule.times_files.{run_id}")
    times.upload("times.csv", "\n".join(["layer,level,ms", *rows]).encode()).run()
    assert not app.exception
    assert f"{4 * len(NAMES)} ms as it is, {2 * len(NAMES)} ms at least: times.csv" in texts(app)
    app.file_uploader(key=f"schedule.times_files.{run_id}").set_value(
        [("times.csv", b"layer,level,ms\nhead,8,fast\n", "text/csv")]
    ).run()
    assert [error.value for error in app.error if "Line 2 of times.csv" in error.value]


def report(names: dict[str, float]) -> bytes:
    """A profile job of Qualcomm AI Hub with these milliseconds."""
    layers = [{"name": name, "type": "Conv", "execution_time": round(1000 * spent)} for name, spent in names.items()]
    return json.dumps({"execution_summary": {"estimated_inference_time": 10**6}, "execution_detail": layers}).encode()


def test_reports_of_a_device_say_what_they_miss(app, run_id) -> None:
    in_milliseconds(app, run_id)
    app.button_group(key=f"times.{run_id}").set_value("From files").run()
    as_it_is = {f"net/{name}/Conv": 4.0 for name in NAMES[1:]}
    int8 = {**{f"net/{name}/Conv": 2.0 for name in NAMES[1:]}, "net/pool": 1.0}
    files = app.file_uploader(key=f"schedule.times_files.{run_id}")
    files.set_value([("float.json", report(as_it_is), "text/json"), ("int8.json", report(int8), "text/json")]).run()
    assert not app.exception
    app.selectbox(key=f"schedule.times_level.1.{run_id}").set_value("8 bits").run()
    assert not app.exception
    assert not app.error
    assert "1,000 ms as it is" in texts(app)
    assert f"1 layer without a time in float.json: {NAMES[0]}." in texts(app)
    (misses,) = [each.value for each in app.dataframe if "Row of no layer" in each.value.columns]
    assert list(misses["Row of no layer"]) == ["net/pool"]
    assert list(misses["Layer without a time"]) == [NAMES[0]]
