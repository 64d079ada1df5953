"""A runtime that is registered outside of senseapp: files are written, searched, measured and shown like any other."""

import json
from pathlib import Path

import pytest
import torch
from streamlit.testing.v1 import AppTest
from torch.func import functional_call

from senseapp.cli.main import main
from senseapp.compressions import QuantizationConfig
from senseapp.core.errors import InvalidSpec
from senseapp.descriptions import SOURCES
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.networks.sources.catalogue import parse_model
from senseapp.prove.answers import picture_answers
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.timed import schedule_for_time
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import MILLISECONDS, DeploySettings
from senseapp.records.spec import DataSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import DeliverTask
from senseapp.server.service import Service
from tests.device_reports import vela
from tests.pages.conftest import delivered, open_page, texts
from tests.pictures import png
from tests.toy_runtime import OPERATIONS, TOY, unpacked
from tests.toy_source import TOY as TOYS

REAL_ENGINE = True

pytestmark = pytest.mark.slow  # traces a network, which takes seconds


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    RUNTIMES.register(TOY)
    SOURCES.register(TOYS)


def runs_to_measure(_: Path) -> dict[str, RunSpec]:
    settings = SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4), num_samples=48, device="cpu")
    return {"bits": RunSpec(model=parse_model("toys/second"), data=DataSpec(kind="random"), sensitivity=settings)}


def deployed(service: Service, backend: Backend, run_id: str, kind: str) -> Candidate:
    task = DeliverTask(run_id=run_id, settings=DeploySettings(kind=kind, runtime=TOY.name))
    return delivered(service, backend, task)[0]  # that was asked for; others of the same search follow


def test_a_file_is_written_searched_measured_and_shown(
    app: AppTest, service: Service, backend: Backend, tmp_path: Path, measured: dict[str, str]
) -> None:
    run_id = measured["bits"]
    candidate = deployed(service, backend, run_id, "mixed")
    path = backend.store.folder(run_id).candidate_file(candidate)
    record = candidate.deployment
    assert record is not None
    assert (path.suffix, candidate.title, record.machine) == (".toy", "Toy in 8-bit numbers", OPERATIONS.machine())
    assert set(record.figures) == {"file", "original", "int8"}  # it has no default of its own
    assert record.elsewhere == ()  # no other runtime opens toys
    assert record.notes[-1] == "Toys round weights only."
    assert record.readme("x.toy").splitlines()[0] == 'Load: import toy; network = toy.open("x.toy")'

    evaluator = ScheduleEvaluator.open(service.result(run_id))
    images = evaluator.images.proof.batch(0, len(evaluator.images.proof))
    weights = unpacked(path.read_bytes())[1]
    before, after = (functional_call(evaluator.dense.model, each, (images,)) for each in ({}, weights))
    changed = float((before.argmax(1) != after.argmax(1)).double().mean())
    assert next(each.delta for each in record.figures["file"].changes if each.metric == "agreement") == changed
    assert record.figures["file"].file_bytes == path.stat().st_size
    ratio = path.stat().st_size / len(evaluator.original_file(OPERATIONS))
    assert record.figures["file"].time_ratio.value == pytest.approx(ratio, rel=0.01)

    answers = service.work.answers(run_id, candidate)
    assert answers is not None
    differ = (answers.file[name].text != answer.text for name, answer in answers.original.items())
    assert sum(differ) == round(changed * len(images))
    picture = tmp_path / "picture.png"
    picture.write_bytes(png(3))
    found = picture_answers(service.run(run_id).spec, picture, [(candidate.file, path, TOY.name)])
    assert candidate.file in found.files

    for page in ("results", "targets", "compare", "runs", "present"):
        open_page(app, f"pages/{page}.py", run=run_id)
        assert not app.exception, page
    open_page(app, "pages/results.py", run=run_id, **{"show-files": "yes"})
    assert any(button.label.startswith("Get the file that runs (.toy)") for button in app.get("download_button"))
    assert any(block.value.startswith("toyprof ") for block in app.code)
    app.file_uploader(key=f"results.device_report.{run_id}").upload("vela.txt", vela().encode()).run()
    assert not app.exception
    shown = [each.value.replace("\\", "") for each in (*app.markdown, *app.caption)]
    assert {"**2.44 ms**", "**6 on NPU**", "A call, estimated"} <= set(shown)
    assert "vela.txt is an estimate of Vela" in " ".join(shown)
    app.file_uploader(key=f"results.device_report.{run_id}").set_value(("x.txt", b"nothing", "")).run()
    assert "no report that senseapp knows" in " ".join(each.value for each in (*app.error, *app.warning, *app.markdown))


@pytest.mark.wide
def test_what_int8_harms_stays_in_float_in_any_runtime(
    service: Service, backend: Backend, monkeypatch: pytest.MonkeyPatch, measured: dict[str, str]
) -> None:
    monkeypatch.setattr("tests.toy_runtime._STEPS", 3)  # so few that some weights suffer
    run_id = measured["bits"]
    candidate = deployed(service, backend, run_id, "mixed")
    record = candidate.deployment
    assert record is not None
    assert candidate.form == "mixed"
    assert record.in_float
    assert set(record.in_float) < {layer.name for layer in service.result(run_id).profile.layers}
    harm, of_all = (
        next(each.delta for each in record.figures[name].changes if each.metric == "kl") for name in ("file", "int8")
    )
    assert harm < of_all
    assert record.figures["file"].seconds.value <= record.settings.most_time * record.figures["int8"].seconds.value


def test_a_time_is_a_budget_in_any_runtime(service: Service, backend: Backend, measured: dict[str, str]) -> None:
    evaluator = ScheduleEvaluator.open(service.result(measured["bits"]))
    found = schedule_for_time(evaluator, OPERATIONS, 1.0)
    assert all(entry.compression == "none" for entry in found.entries)  # it is as quick as that
    whole = len(evaluator.original_file(OPERATIONS)) * 1e-9
    found = schedule_for_time(evaluator, OPERATIONS, 0.8 * whole)
    assert any(entry.level == 8 for entry in found.entries)
    assert found.achieved[MILLISECONDS] <= 800 * whole


def test_the_page_offers_the_runtimes_that_are_installed(
    app: AppTest, service: Service, backend: Backend, measured: dict[str, str]
) -> None:
    run_id = measured["bits"]
    made = deployed(service, backend, run_id, "int8")
    open_page(app, "pages/targets.py", run=run_id)
    chooser = app.button_group(key=f"runtime.{run_id}")
    assert list(chooser.options) == ["onnxruntime", "OpenVINO", "Toy runtime"]
    assert "one .onnx file, which onnxruntime runs on phones" in texts(app)
    chooser.set_value(TOY.name).run()
    assert not app.exception
    assert "one Toy file, which Toy runtime runs in tests" in texts(app)
    app.button(key=f"schedule.deploy.{run_id}").click().run()
    assert not app.exception
    (asked,) = [each for each in backend.runner.unfinished() if isinstance(each, DeliverTask) and each.schedule]
    assert asked.settings.runtime == TOY.name

    del RUNTIMES[TOY.name]  # what files were made for is not installed any more
    open_page(app, "pages/targets.py", run=run_id)
    assert not app.exception
    chooser = app.button_group(key=f"runtime.{run_id}")
    assert list(chooser.options) == ["onnxruntime", "OpenVINO"]
    (kept,) = service.work.candidates(run_id)
    assert (kept, kept.title) == (made, "toyrt in 8-bit numbers")
    open_page(app, "pages/results.py", run=run_id)
    assert not app.exception


@pytest.mark.wide
def test_the_command_line_deploys_to_it_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = tmp_path / "run", tmp_path / "net.toy"
    given = ["--data", "random", "--samples", "16", "--compression", "quantization", "--levels", "8,4"]
    assert main(["analyze", "--model", "toys/first", *given, "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["deploy", "--run", str(run), "--mode", "int8", "--runtime", TOY.name, "--out", str(file)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["machine"] == OPERATIONS.machine()
    assert file.is_file()
    torch.testing.assert_close(report["file"]["file_bytes"], file.stat().st_size)
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert "Toy in 8-bit numbers" in (tmp_path / "report.html").read_text()
    assert main(["deploy", "--run", str(run), "--runtime", TOY.name, "--out", str(tmp_path / "net.onnx")]) == 2
    assert "The file's name ends in .toy" in capsys.readouterr().err


def test_a_name_that_there_is_not_lists_those_there_are() -> None:
    with pytest.raises(InvalidSpec, match="must be one of onnxruntime, openvino, litert, toyrt, got 'abacus'"):
        RUNTIMES.named("abacus")
