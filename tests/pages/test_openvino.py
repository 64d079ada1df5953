"""One run is deployed to onnxruntime and to OpenVINO; the page and the command line offer both and compare them."""

import html
import json
from pathlib import Path

import onnx
import pytest
import torch
from streamlit.testing.v1 import AppTest

from senseapp.cli.main import main
from senseapp.compressions import QuantizationConfig
from senseapp.descriptions import SOURCES
from senseapp.descriptions.runtimes import RuntimeDescription, usual_runtime
from senseapp.networks.sources.catalogue import parse_model
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.findings import side_by_side
from senseapp.prove.timed import schedule_for_time
from senseapp.records.deployment import DeploySettings, Elsewhere, Median
from senseapp.records.spec import DataSpec, RunSpec, SensitivitySpec
from senseapp.runtimes.openvino.operations import OPERATIONS
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import DeliverTask
from senseapp.server.service import Service
from tests.pages.conftest import delivered, open_page, texts
from tests.toy_source import TOY as TOYS

REAL_ENGINE = True

pytestmark = pytest.mark.slow  # traces a network, which takes seconds


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    SOURCES.register(TOYS)


def runs_to_measure(_: Path) -> dict[str, RunSpec]:
    settings = SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4), num_samples=48, device="cpu")
    return {"bits": RunSpec(model=parse_model("toys/second"), data=DataSpec(kind="random"), sensitivity=settings)}


@pytest.fixture
def run_id(measured: dict[str, str]) -> str:
    return measured["bits"]


@pytest.mark.wide
def test_one_run_is_deployed_to_each_and_they_are_compared(
    app: AppTest, service: Service, backend: Backend, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for name, other in (("onnxruntime", "openvino"), ("openvino", "onnxruntime")):
        task = DeliverTask(run_id=run_id, settings=DeploySettings(kind="int8", runtime=name))
        (found[name],) = delivered(service, backend, task)
        record = found[name].deployment
        assert record is not None
        (elsewhere,) = record.elsewhere
        assert elsewhere.runtime == other
        assert min(elsewhere.file.low, elsewhere.original.low) > 0
        assert side_by_side(name, elsewhere) in record.notes
    ours, theirs = found["openvino"], found["onnxruntime"]
    assert ours.file != theirs.file
    assert (ours.title, theirs.title) == ("OpenVINO ONNX in 8-bit numbers", ".onnx file in 8-bit numbers")
    assert set(ours.deployment.figures) == {"file", "original", "int8"}  # NNCF is a package of its own
    assert "OpenVINO 20" in ours.deployment.machine

    evaluator = ScheduleEvaluator.open(service.result(run_id))
    proof = evaluator.images.proof.batch(0, len(evaluator.images.proof))
    content = backend.store.folder(run_id).candidate_file(ours).read_bytes()
    with torch.inference_mode():
        before = evaluator.dense.model(proof)
    changed = float((before.argmax(1) != OPERATIONS.open(content).run(proof).argmax(1)).double().mean())
    assert next(each.delta for each in ours.figures.changes if each.metric == "agreement") == changed
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load_from_string(content).graph.node)

    open_page(app, "pages/results.py", run=run_id)
    assert not app.exception
    with monkeypatch.context() as patch:
        patch.setattr(RuntimeDescription, "is_installed", property(lambda each: each.name == usual_runtime()))
        open_page(app, "pages/targets.py", run=run_id)
        assert not app.exception
        assert f"runtime.{run_id}" not in {group.key for group in app.get("button_group")}
        words = html.unescape(texts(app))
        assert "OpenVINO files, which run on processors of PCs and servers, cannot be made: that is not" in words
        assert "pip install" not in words
        assert "one .onnx file, which onnxruntime runs" in html.unescape(texts(app))

    open_page(app, "pages/targets.py", run=run_id)
    chooser = app.button_group(key=f"runtime.{run_id}")
    assert list(chooser.options) == ["onnxruntime", "OpenVINO"]
    chooser.set_value("openvino").run()
    assert not app.exception
    assert "one OpenVINO ONNX file, which OpenVINO runs on processors of PCs" in html.unescape(texts(app))
    app.button(key=f"schedule.deploy.{run_id}").click().run()
    assert not app.exception
    (asked,) = [each for each in backend.runner.unfinished() if isinstance(each, DeliverTask) and each.schedule]
    assert asked.settings.runtime == "openvino"


@pytest.mark.wide
def test_a_time_is_a_budget_in_openvino(service: Service, run_id: str) -> None:
    evaluator = ScheduleEvaluator.open(service.result(run_id))
    found = schedule_for_time(evaluator, OPERATIONS, 10.0)  # it is as quick as that
    assert all(entry.compression == "none" for entry in found.entries)


@pytest.mark.wide
def test_the_command_line_deploys_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = tmp_path / "run", tmp_path / "net.onnx"
    given = ["--data", "random", "--samples", "16", "--compression", "quantization", "--levels", "8,4"]
    assert main(["analyze", "--model", "toys/first", *given, "--out", str(run)]) == 0
    capsys.readouterr()
    wanted = ["--mode", "int8", "--runtime", "openvino", "--format", "kit", "--out", str(file)]
    assert main(["deploy", "--run", str(run), *wanted]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["runtime"], list(report["elsewhere"])) == ("openvino", ["onnxruntime"])
    assert report["machine"] == OPERATIONS.machine()
    times = report["elsewhere"]["onnxruntime"]["file"]
    assert times["low"] <= times["value"] <= times["high"]
    assert "import openvino" in file.with_suffix(".README.txt").read_text()
    assert "openvino" in (tmp_path / "predict.ipynb").read_text()
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert "OpenVINO ONNX in 8-bit numbers" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (Median(value=0.7, low=0.6, high=0.8), "OpenVINO is quicker here: in OpenVINO the file takes 70 % (60 to 80)"),
        (Median(value=1.5, low=1.2, high=2), "onnxruntime is quicker here: in OpenVINO the file takes 150 % (120 to"),
        (Median(value=0.9, low=0.8, high=1.1), "In OpenVINO the file takes as long here as in onnxruntime, as far as"),
    ],
)
def test_which_one_is_quicker_is_said_where_the_interval_says_so(file: Median, said: str) -> None:
    original = Median(value=1.1, low=1.0, high=1.2)
    found = side_by_side("onnxruntime", Elsewhere(runtime="openvino", file=file, original=original))
    assert found.startswith(said)
    assert "the original in float takes 110 % (100 to 120)" in found
