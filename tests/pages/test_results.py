"""The Results page: the finding first, then linked views of it."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from senseapp.app.common.run_guard import make_report
from senseapp.app.common.state import pick_key
from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.core.codec import loads
from senseapp.records.measurement import RunResult
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.service import Service
from tests.pages.conftest import finish, open_layers, texts
from tests.pages.records import FRAGILE, NOT_PRUNABLE


@pytest.fixture
def results(app: AppTest, finished_run: str) -> AppTest:
    open_layers(app, finished_run)
    assert not app.exception
    return app


def charts(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]


def open_tab(app: AppTest, run_id: str, label: str) -> AppTest:
    app.session_state[f"results.tab.{run_id}"] = label
    return app.run()


def test_the_headline_can_be_read_out_and_the_source_of_the_numbers_is_among_the_details(results, finished_run) -> None:
    shown = texts(results)
    assert re.search(r"Most fragile: layer2.0.conv1 changes about \d+ of 100 answers", shown)  # as the bars do
    assert "Pale bars" not in shown
    results.session_state[f"results.show.details.{finished_run}"] = True
    shown = texts(results.run())
    for part in ("**Measured**", "512 images", "95 % intervals"):
        assert part in shown
    source = next(caption for caption in results.caption if "**Measured**" in caption.value)
    assert "computed in 32-bit numbers · random choices of seed 0" in source.proto.help


@pytest.mark.parametrize("adapted", [False, True])
def test_layers_in_fewer_bits_may_lose_more_than_a_whole_file(app, service, backend, adapted: bool) -> None:
    settings = SensitivitySpec(compression=QuantizationConfig(), levels=(2, 4, 8), adapted=adapted)
    open_layers(app, finish(service, backend, RunSpec(sensitivity=settings)))
    assert ("A whole file can lose less than a layer here" in texts(app)) is not adapted


def test_level_metric_and_order_answer_at_once(results: AppTest, finished_run: str) -> None:
    assert "What does each layer lose at 50 %?" in texts(results)
    assert "Of 100 answers, about so many change" in json.dumps(charts(results)[0])
    results.button_group(key=f"results.level.{finished_run}").set_value(0.75).run()
    assert "What does each layer lose at 75 %?" in texts(results)
    results.selectbox(key=f"results.metric.{finished_run}").set_value("top1").run()
    assert "Loss of right answers" in json.dumps(charts(results)[0])
    results.button_group(key=f"order.{finished_run}").set_value("Most fragile first").run()
    assert charts(results)[0]["layer"][0]["encoding"]["y"]["scale"]["domain"][0] == FRAGILE


def test_estimates_are_shown_first_in_the_metric_that_the_headline_speaks_of(app, service, backend) -> None:
    run = finish(service, backend, RunSpec(sensitivity=SensitivitySpec(mode="quick")))
    open_layers(app, run)
    assert "Most fragile by estimate: layer2.0.conv1, harm 0.080 at 50 %" in texts(app)
    assert "Pale bars are estimates: length and colour may change" in texts(app)
    assert "Lines are 95 % intervals" not in texts(app)  # estimates have none
    assert app.selectbox(key=f"results.metric.{run}").value == "kl"


def test_a_picked_layer_shows_its_panel_and_close_takes_it_away(results: AppTest, finished_run: str) -> None:
    results.session_state[f"bars.{finished_run}.0"] = {"selection": {"pick": [{"layer": FRAGILE}]}}
    results.session_state[pick_key(finished_run)] = FRAGILE
    results.run()
    for part in ("16 × 8 × 3 × 3", "8 × 8 × 8 → 16 × 8 × 8", "1.15 k", "20.0 % of the model"):
        assert part in texts(results)
    assert len(charts(results)) == 2
    results.button(key=f"panel.close.{finished_run}").click().run()
    assert len(charts(results)) == 1


def test_one_table_holds_every_layer_and_both_downloads_stand_below(results: AppTest) -> None:
    (layers,) = results.dataframe
    assert len(layers.value) == 6
    assert list(layers.value) == ["row", "change_text", "interval_text", "params", "rank"]  # none that is not shown
    assert {"Download CSV", "Download JSON"} <= {button.label for button in results.get("download_button")}


def test_what_is_downloaded_says_nothing_of_folders_on_the_server(app, service, backend, monkeypatch) -> None:
    """The run itself keeps them, so that it can be run again."""
    run_id = finish(service, backend, RunSpec())
    folder = backend.store.folder(run_id)
    model = ModelSpec(library="auto", checkpoint="/srv/senseapp/uploads/0a1b2c/net.pth")
    images = DataSpec(kind="archive", path="/srv/senseapp/uploads/3d4e5f/photos.zip")
    folder.save_result(replace(folder.load_result(), spec=RunSpec(model=model, data=images)))
    offered: dict[str, Any] = {}
    plain = st.download_button

    def noted(label: str, data: Any, **how: Any) -> bool:
        offered[how["file_name"]] = data
        return plain(label, data, **how)

    monkeypatch.setattr(st, "download_button", noted)
    open_layers(app, run_id)
    assert not app.exception
    written = offered["result.json"]()
    assert "uploads" not in written
    assert loads(written, RunResult).spec.model.checkpoint == "net.pth"
    assert "/srv" not in offered["sensitivity.csv"]()
    assert service.result(run_id).spec.model == model


def test_layers_that_cannot_be_pruned_are_apart_with_the_reason(app, service, backend) -> None:
    spec = RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.3, 0.5)))
    open_layers(app, finish(service, backend, spec))
    assert "## 1 layer without a value, or without one at some levels" in texts(app)
    apart = app.dataframe[-1].value
    assert list(apart["Layer"]) == [NOT_PRUNABLE]
    assert "Its channels are added" in apart["Reason"].iloc[0]


def test_every_chart_of_random_inputs_says_that_it_is_indicative_only_below_its_question(app, service, backend) -> None:
    run_id = finish(service, backend, RunSpec(data=DataSpec(kind="random")))
    open_layers(app, run_id)
    for label, question in {
        "Layers": "What does each layer lose at",
        "Curves": "How fast does the loss grow with compression?",
        "Heat map": "Where in the network, and from which level on, does compression hurt?",
    }.items():
        open_tab(app, run_id, label)
        assert len(charts(app)) == texts(app).count("Indicative only: the inputs are random")
        assert question in texts(app)


@pytest.mark.slow
def test_the_report_of_a_run_can_be_downloaded(results: AppTest, finished_run: str, service: Service) -> None:
    button = next(one for one in results.get("download_button") if one.key == f"results.report.{finished_run}")
    assert button.label == "Download report"
    record = service.run(finished_run)
    found = service.result(finished_run)
    assert found is not None
    report = make_report(service, record, found, ()).decode()
    assert "<h1>demo</h1>" in report
    assert record.headline.replace("'", "&#39;") in report


def test_a_link_is_made_and_taken_back_on_results(results: AppTest, finished_run: str, service: Service) -> None:
    results.button_group(key=f"results.level.{finished_run}").set_value(0.75).run()
    assert "a view of this run in which nothing can be changed" in texts(results)
    assert "This does not protect the run. There is no login here: everybody who opens this server" in texts(results)
    results.button(key=f"runs.share.{finished_run}").click().run()
    link = service.run(finished_run).link
    assert f"results?run={link}&show-layers=yes&level=0.75" in results.code[0].value  # others see the views as they are
    results.button(key=f"runs.unshare.{finished_run}").click().run()
    assert not service.run(finished_run).shared
