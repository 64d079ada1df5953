"""A metric that is added by one file and one line of the registry is measured, scheduled and shown like any other."""

import json
from pathlib import Path

import pytest
import torch
from streamlit.testing.v1 import AppTest

from senseapp.cli.main import main
from senseapp.metrics import METRICS
from senseapp.records.measurement import RunResult, Status
from senseapp.records.schedule import ResourceBudget
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.solve.methods import make_schedule
from senseapp.store.run_folder import RunFolder
from tests.pages.conftest import open_layers, wait_for_card
from tests.toy_metric import MARGIN, first_over_second

REAL_ENGINE = True


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, MARGIN.name, MARGIN)


def _analysed(folder: Path) -> RunResult:
    options = ("--compression", "sparsity", "--levels", "50", "--samples", "24", "--metric", "margin")
    assert main(["analyze", "--model", "demo", "--data", "demo", *options, "--out", str(folder)]) == 0
    return RunFolder(folder).load_result()


def test_its_terms_are_what_it_says() -> None:
    before, after = torch.randn(2, 50, 7, generator=torch.Generator().manual_seed(0))
    change = MARGIN.change(MARGIN.moments(before, after, None))
    drops = (first_over_second(before) - first_over_second(after)).double()
    assert change.delta == pytest.approx(float(drops.mean()))
    assert change.value == pytest.approx(float(first_over_second(after).mean()))
    assert change.ci_low < change.delta < change.ci_high


@pytest.mark.slow
def test_the_command_line_ranks_the_demo_by_it_and_a_schedule_counts_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = _analysed(tmp_path / "run")
    assert result.metric == "margin"
    ranked = result.ranked(0.5, "margin")
    assert len(ranked) == sum(item.status is Status.MEASURED for item in result.measurements) > 1
    assert ranked[0][1].delta > ranked[-1][1].delta
    assert f"Most fragile: {ranked[0][0].layer} loses" in capsys.readouterr().out
    schedule = make_schedule(result, budget=ResourceBudget(kind="params", target=0.4), metric="margin")
    assert schedule.metric == "margin"
    assert schedule.achieved["params"] >= 0.4 - 1e-9
    assert main(["compare", str(tmp_path / "run"), str(tmp_path / "run"), "--metric", "margin"]) == 0
    assert "Score margin" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "report.html")]) == 0
    assert "Drop in margin" in (tmp_path / "report.html").read_text()


def test_analyze_offers_it_and_results_are_shown_in_it(app: AppTest, service: Service, backend: Backend) -> None:
    wait_for_card(app.run())
    app.selectbox(key="analyze.metric").set_value("margin").run()
    assert not app.exception
    assert MARGIN.label in app.selectbox(key="analyze.metric").options
    app.number_input(key="analyze.options.samples").set_value(24).run()
    app.button(key="analyze.run").click().run()
    assert service.runs()[0].spec.sensitivity.metric == "margin"
    while backend.runner.run_next():
        pass
    run_id = service.runs()[0].run_id
    open_layers(app, run_id)
    assert not app.exception
    assert app.selectbox(key=f"results.metric.{run_id}").value == "margin"
    drawn = [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]
    assert "Drop in margin" in json.dumps(drawn[0])
