"""The Compare page: runs beside each other, with the choice in the URL."""

import json
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.common.state import pick_key
from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.records.candidate import Delivery
from senseapp.records.schedule import Schedule
from senseapp.records.spec import ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.deployments import a_candidate, a_judged_candidate, some_figures
from tests.distiller_tables import TABLE
from tests.pages.conftest import finish, open_page, texts, tick
from tests.pages.records import FRAGILE, NOT_PRUNABLE

PAGE = "pages/compare.py"


@pytest.fixture
def pair(service: Service, backend: Backend) -> list[str]:
    """A sparsity run, and one of bits."""
    bits = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4, 2)))
    return [finish(service, backend, spec) for spec in (RunSpec(), bits)]


def open_compare(app: AppTest, *runs: str, **query: Any) -> AppTest:
    open_page(app, PAGE, run=list(runs), **query)
    assert not app.exception
    return app


def charts(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]


def in_url(app: AppTest, name: str) -> list[str]:
    found = app.query_params.get(name, [])
    return found if isinstance(found, list) else [found]


def test_without_a_run_the_page_says_what_to_do(app: AppTest) -> None:
    open_compare(app)
    assert "There is nothing to compare" in texts(app)


def test_two_runs_of_a_link_are_compared_and_a_layer_is_picked_in_both(app: AppTest, pair: list[str]) -> None:
    open_compare(app, *pair)
    assert app.multiselect(key="compare.runs").value == pair
    assert (
        "A and B rank 6 layers almost alike: 1.00, where 1 is the same order. No layer surely changed place"
        in texts(app)
    )
    assert "6 layers matched by name" in texts(app)
    assert len(charts(app)) == 1
    assert all(len(each.proto.alt) > 10 for each in (*app.get("vega_lite_chart"), *app.get("arrow_data_frame")))
    rows = app.dataframe[-1].value.set_index("Setting")
    assert list(rows.loc["Compression"]) == ["Set the smallest weights to zero", "Store weights with fewer bits"]
    assert "Model" not in rows.index  # only what differs
    app.session_state[pick_key("compare")] = FRAGILE
    app.run()
    assert "demo, 50 %: **about 8 of 100 answers** (7.4 to 8.6), rank 1, measured" in texts(app)
    app.button(key="compare.close").click().run()
    assert "rank 1, measured" not in texts(app)


def test_runs_that_judge_in_different_ways_show_the_file_to_take_of_each(app, pair, backend) -> None:
    original = some_figures(0.0, 1.0, 4000)
    files = [
        a_candidate("int8", size=size, share=0.5, lost=0.004, metric=metric, original=original)
        for size, metric in ((1200, "top1"), (1300, "agreement"))
    ]
    for run_id, file in zip(pair, files, strict=True):
        backend.store.folder(run_id).save("first", Delivery(candidates=(file,)))
    open_compare(app, *pair)
    assert "not drawn on one axis" in texts(app)
    assert all(file.headline in texts(app) for file in files)


def test_each_run_says_what_its_files_are_judged_by(app: AppTest, service: Service, backend: Backend) -> None:
    runs = [finish(service, backend, RunSpec(goal=goal)) for goal in ("smaller", "faster")]
    for run_id in runs:
        found = Delivery(candidates=(a_candidate("int8", size=1200, share=1.5, metric="top1"),))
        backend.store.folder(run_id).save("first", found)
    open_compare(app, *runs)
    names = charts(app)[0]["layer"][1]["encoding"]["color"]["scale"]["domain"]
    assert [name.partition(", ")[2] for name in names] == ["judged by size", "judged by time"]
    assert all(f"**{name}**: " in texts(app) for name in names)
    assert "pale: not worth taking by what their run is judged by" in texts(app)


def test_a_run_for_targets_offers_no_file_of_weights(app: AppTest, service: Service, backend: Backend) -> None:
    schedule = Schedule(model="net", method="optimal", entries=(), achieved={"bytes": 0.5})
    file = a_candidate("weights", size=1200, metric="top1", lost=0.004, schedule=schedule)
    runs = [finish(service, backend, RunSpec(goal=goal)) for goal in ("targets", "smaller")]
    for run_id in runs:
        backend.store.folder(run_id).save("first", Delivery(candidates=(file,)))
    open_compare(app, *runs)
    assert "Targets that save 50 %" in texts(app)
    assert [each.value for each in app.caption if "file is not on this server" in each.value] == [
        ":material/info: This file is not on this server: only its figures are. Make it again."
    ]  # of the other run: the place of a button without a file


def test_all_files_are_judged_by_what_may_be_lost_in_the_first_run(app, backend: Backend, pair: list[str]) -> None:
    for run_id in pair:
        found = Delivery(candidates=(a_candidate("int8", metric="top1", lost=0.004),))
        backend.store.folder(run_id).save("first", found)
    open_page(app, "pages/results.py", run=pair[0], tolerated="0.2")
    open_compare(app, *pair)
    assert texts(app).count("was measured to lose at most 0.2 points") == 2
    assert "The tolerable loss set for run A holds for all of them here." in texts(app)
    makers = [each.key for each in app.button if each.label == "Make the original's file (.onnx)"]
    assert makers == [f"recommendation.original.{run_id}" for run_id in pair]  # both say to keep it
    assert in_url(app, "tolerated") == ["0.2"]


@pytest.mark.parametrize("runs", [1, 2])
def test_the_promise_of_results_holds_here_and_in_the_link(app, backend: Backend, pair: list[str], runs: int) -> None:
    for run_id in pair:
        backend.store.folder(run_id).save("first", Delivery(candidates=(a_judged_candidate(4, 500, metric="top1"),)))
    open_page(app, "pages/results.py", run=pair[0])
    app.toggle(key=f"promised.{pair[0]}").set_value(True).run()
    open_compare(app, *pair[:runs])
    assert texts(app).count("Keep the original") == runs
    assert in_url(app, "promised") == ["yes"]
    del app.session_state["senseapp.session"]  # somebody else opens the link
    open_compare(app, *pair[:runs], promised="yes")
    assert texts(app).count("Keep the original") == runs


def test_level_and_metric_of_the_link_are_taken_and_written_back(app: AppTest, pair: list[str]) -> None:
    names = [f"level-{run[:8]}" for run in pair]
    open_compare(app, *pair, **dict(zip(names, ("0.25", "2.0"), strict=True)), metric="kl")
    first, second = (app.button_group(key=f"{name}.compare") for name in names)
    assert (first.value, second.value) == (0.25, 2.0)
    assert "Changed answers, about · 6 layers" in texts(app)
    second.set_value(8.0).run()
    assert [in_url(app, name) for name in names] == [["0.25"], ["8.0"]]
    app.selectbox(key="metric.compare").set_value("agreement").run()
    assert in_url(app, "metric") == ["agreement"]
    assert "Answers that stay · 6 layers" in texts(app)


def test_a_chosen_run_joins_the_url_and_one_that_is_not_there_is_said(app: AppTest, pair: list[str]) -> None:
    open_compare(app, pair[0], "../secret")
    assert "no such run" in app.error[0].value
    app.multiselect(key="compare.runs").set_value(pair).run()
    assert in_url(app, "run") == pair
    assert "A and B rank" in texts(app)
    app.switch_page("pages/guide.py").run()
    app.query_params.clear()
    app.switch_page(PAGE).run()
    assert "A and B rank" in texts(app)  # the last comparison comes back


def test_one_run_compares_its_estimate_with_its_measurement(app: AppTest, pair: list[str]) -> None:
    open_compare(app, pair[0])
    assert "Estimate and measurement rank 6 layers almost alike: 1.00, where 1 is the same order." in texts(app)
    labels = charts(app)[0]["layer"][1]["encoding"]["color"]["scale"]["domain"]
    assert labels == ["A · estimated", "B · measured"]


def test_a_run_without_both_asks_for_a_second(app: AppTest, service: Service) -> None:
    open_compare(app, service.import_csv("published", TABLE.encode()))
    assert "Choose a second run" in texts(app)
    assert not charts(app)


def test_layers_without_a_counterpart_are_named_with_the_reason(app, service, backend, pair) -> None:
    pruning = RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.5,)))
    open_compare(app, pair[0], finish(service, backend, pruning))
    assert "5 layers matched by name · 1 without a value in B" in texts(app)
    unmatched = next(frame.value for frame in app.dataframe if "In A" in frame.value and "Layer" in frame.value)
    assert list(unmatched["Layer"]) == [NOT_PRUNABLE]
    assert "Its channels are added" in unmatched["In B"].iloc[0]


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_why_runs_have_no_metric_in_common_is_said(app, service, backend, pair, monkeypatch, task) -> None:
    monkeypatch.setattr("senseapp.app.compare.sides.shared_metrics", lambda _: ())
    other = finish(service, backend, RunSpec(model=ModelSpec(library="timm", name="resnet10t", task=task)))
    open_compare(app, pair[0], other)
    alike = task == "classification"
    assert ("These runs have no metric in common. demo: " in app.info[0].value) is alike
    assert ("timm/resnet10t: Segmentation: one class per pixel." in app.info[0].value) is not alike


def test_four_runs_are_compared_with_the_first(app: AppTest, service: Service, backend: Backend) -> None:
    runs = [finish(service, backend, RunSpec(sensitivity=SensitivitySpec(seed=seed))) for seed in range(4)]
    open_compare(app, *runs)
    assert "How far others rank 6 layers as A does (1 is the same order): 1.00 for B, 1.00 for C, 1.00 for D." in texts(
        app
    )


def test_ticked_runs_lead_here(app: AppTest, service: Service, pair: list[str]) -> None:
    open_page(app, "pages/runs.py")
    assert app.button(key="runs.compare").disabled
    tick(app, service, *pair)
    app.button(key="runs.compare").click().run()
    assert in_url(app, "run") == pair
    assert "A and B rank" in texts(app)


def test_layers_of_different_networks_are_not_compared_and_that_is_said(app, service, pair) -> None:
    strangers = service.import_csv("published", TABLE.replace("conv", "other").replace("fc", "head").encode())
    open_compare(app, pair[0], strangers)
    assert "different networks" in texts(app)
    assert not charts(app)
