"""A source of networks that is registered outside of senseapp: analysed, scheduled, proven and shown like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.cli.main import main
from senseapp.core.errors import InvalidSpec, UnknownModel
from senseapp.descriptions import SOURCES
from senseapp.networks.sources.catalogue import parse_model
from senseapp.prove.prove import validate
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import DataSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.solve.methods import make_schedule
from tests.pages.conftest import finish, open_page, wait_for_card
from tests.toy_source import TOY


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    SOURCES.register(TOY)


@pytest.fixture
def backend(real_backend: Backend) -> Backend:
    return real_backend


def a_spec() -> RunSpec:
    return RunSpec(
        model=parse_model("toys/second"),
        data=DataSpec(kind="random"),
        sensitivity=SensitivitySpec(levels=(0.5, 0.9), num_samples=16, device="cpu"),
    )


def test_a_name_that_it_does_not_have_lists_those_that_it_has() -> None:
    with pytest.raises(InvalidSpec, match="The toys networks are toys/first, toys/second, got toys/third"):
        parse_model("toys/third")
    with pytest.raises(UnknownModel, match="A model is written demo, auto, onnx, toys, timm/NAME or torchvision/NAME"):
        parse_model("games/third")


@pytest.mark.slow
def test_it_is_measured_scheduled_proven_and_shown(app: AppTest, service: Service, backend: Backend) -> None:
    run_id = finish(service, backend, a_spec())
    result = service.result(run_id)
    assert result.profile.title == "toys/second"
    assert result.measurements
    schedule = make_schedule(result, budget=ResourceBudget(kind="params", target=0.5))
    assert validate(result, schedule, repair=True).result.changes
    for page in ("results", "targets", "compare", "runs", "present"):
        open_page(app, f"pages/{page}.py", run=run_id)
        assert not app.exception, page


def test_analyze_offers_its_networks(app: AppTest, service: Service) -> None:
    app.run()
    app.segmented_control(key="analyze.model.source").set_value(TOY.label).run()
    app.selectbox(key="analyze.model.toys").set_value("second").run()
    wait_for_card(app)
    assert not app.exception


@pytest.mark.wide
@pytest.mark.slow
def test_the_command_line_deploys_and_reports_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = tmp_path / "run", tmp_path / "toy.onnx"
    given = ["--data", "random", "--samples", "16", "--compression", "quantization", "--levels", "8,4"]
    assert main(["analyze", "--model", "toys/first", *given, "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["deploy", "--run", str(run), "--mode", "int8", "--out", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["files"]
    assert file.is_file()
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert "toys/first" in (tmp_path / "report.html").read_text()
