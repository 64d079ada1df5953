"""Where the file will run: asked with the goal, kept in the address, and followed by Results and Schedule."""

import html
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from streamlit.testing.v1 import AppTest

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions.runtimes import RUNTIMES, RuntimeDescription
from senseapp.descriptions.targets import TARGETS
from senseapp.records.deployment import DeploySettings
from senseapp.records.goal import usual_run
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import DeliverTask
from senseapp.server.service import Service
from tests.deployments import a_candidate, a_deployment
from tests.pages.conftest import finish, keep, open_page, started, texts, wait_for_card

MISSING = RUNTIMES["litert"].how_to_add


@pytest.fixture
def _with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RuntimeDescription, "is_installed", property(lambda each: True))


@pytest.fixture
def _without_litert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RuntimeDescription, "is_installed", property(lambda each: each.name != "litert"))


@pytest.mark.usefixtures("_with_all")
def test_the_target_is_asked_with_a_goal_that_makes_files_and_is_in_the_address(
    analyze: AppTest, another_app: Callable[[], AppTest], service: Service
) -> None:
    assert list(analyze.selectbox(key="analyze.target").options) == [each.label for each in TARGETS.values()]
    analyze.selectbox(key="analyze.target").set_value("phone").run()
    assert dict(analyze.query_params) == {"target": "phone"}
    linked = another_app()
    linked.query_params["target"] = "phone"
    wait_for_card(linked.run()).button(key="analyze.run").click().run()
    assert not linked.exception
    assert started(service) == replace(usual_run(), target="phone")
    analyze.radio(key="analyze.goal").set_value("look").run()
    assert "analyze.target" not in {each.key for each in analyze.selectbox}
    analyze.button(key="analyze.run").click().run()
    assert started(service).target == "computer"


@pytest.mark.usefixtures("_without_litert")
def test_a_target_whose_runtime_is_missing_says_how_to_add_it_before_anything_starts(
    analyze: AppTest, service: Service
) -> None:
    analyze.selectbox(key="analyze.target").set_value("phone").run()
    assert [html.unescape(each.value) for each in analyze.error] == [MISSING]
    assert analyze.button(key="analyze.run").disabled
    analyze.button(key="analyze.detector").click().run()
    assert not analyze.exception
    assert not service.runs()
    with pytest.raises(InvalidSpec, match="LiteRT is not installed here"):
        service.start(RunSpec(target="phone"))
    analyze.selectbox(key="analyze.target").set_value("qualcomm").run()
    assert not analyze.button(key="analyze.run").disabled


@pytest.mark.usefixtures("_with_all")
def test_results_and_schedule_follow_the_target(app: AppTest, service: Service, backend: Backend) -> None:
    run_id = finish(service, backend, RunSpec(target="phone"))
    record = a_deployment(settings=DeploySettings(runtime="litert"), in_float=("conv1",))
    tflite = a_candidate("mixed", lost=0.0, deployment=record, file=f"deployed-{1:016x}.tflite")
    keep(backend, run_id, "made", tflite, a_candidate("int8", lost=0.0, size=1_000_000))
    open_page(app, "pages/results.py", run=run_id, **{"show-files": "yes"})
    assert not app.exception
    labels = [each.label for each in app.get("download_button")]
    assert "Get the file that runs (.tflite), 4.70 MB" in labels
    assert "Recipe for your converter (zip)" in labels
    assert TARGETS["phone"].measured in texts(app)
    assert "not compared: for another target" in texts(app)
    open_page(app, "pages/targets.py", run=run_id)
    assert not app.exception
    assert app.button_group(key=f"runtime.{run_id}").value == "litert"


@pytest.mark.usefixtures("_with_all")
def test_16_bit_activations_are_for_files_all_in_int8(app: AppTest, task: DeliverTask, service: Service) -> None:
    run_id = task.run_id
    wide, ends = f"schedule.deploy_wide.{run_id}", f"schedule.deploy_ends.{run_id}"
    open_page(app, "pages/targets.py", run=run_id)
    app.button_group(key=f"runtime.{run_id}").set_value("litert")
    app.button_group(key=f"form.{run_id}").set_value("mixed").run()
    assert wide not in [each.key for each in app.checkbox]
    app.button_group(key=f"form.{run_id}").set_value("int8").run()
    app.checkbox(key=ends).check().run()
    assert wide not in [each.key for each in app.checkbox]
    app.checkbox(key=ends).uncheck().run()
    app.checkbox(key=wide).check().run()
    assert f"schedule.int8.{run_id}" not in [each.key for each in app.button]
    app.button(key=f"schedule.deploy.{run_id}").click().run()
    assert not app.exception
    asked = replace(task, settings=DeploySettings(kind="int8", runtime="litert", activation_bits=16))
    assert service.work.progress(asked).state is RunState.QUEUED


def test_why_there_is_no_file_for_the_target_is_said(app: AppTest, finished_run: str, backend: Backend) -> None:
    reason = "There is no LiteRT file in int8: This network cannot be written for LiteRT: linalg_svd."
    keep(backend, finished_run, "none", notes=(reason,))
    open_page(app, "pages/results.py", run=finished_run)
    assert not app.exception
    assert reason in texts(app)


def test_a_recipe_is_packed(task: DeliverTask, service: Service, backend: Backend, tmp_path: Path) -> None:
    file = a_candidate("mixed", deployment=a_deployment())
    keep(backend, task.run_id, task.key, file)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in ("images", "scores")]
    graph = helper.make_graph([helper.make_node("Sigmoid", ["images"], ["scores"], "last")], "net", ends[:1], ends[1:])
    (backend.store.folder(task.run_id).path / file.file).write_bytes(helper.make_model(graph).SerializeToString())
    with zipfile.ZipFile(service.work.pack_recipes(task.run_id, file, tmp_path / "file")) as archive:
        assert json.loads(archive.read("nodes_to_exclude.json")) == ["last"]
        assert {"nncf_ignored_scope.json", "qnn_tensor_quant_overrides.json", "RECIPE.txt"} < set(archive.namelist())
