"""Every setting of Analyze, Results, Schedule and Compare is kept over a reload, back, and in a second tab."""

from collections.abc import Callable
from typing import Any

import pytest
from streamlit.runtime.state.safe_session_state import SafeSessionState
from streamlit.runtime.state.session_state import SessionState
from streamlit.testing.v1 import AppTest

from senseapp.app.common.state import LayerEdits
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.service import Service
from tests.cases import first_of
from tests.pages.conftest import finish, go_back, open_layers, open_page, started, wait_for_card

pytestmark = pytest.mark.slow

Settings = dict[str, Any]
"""Values by the keys of widgets; ``{run}`` stands for the id of the run."""

ANALYZE: Settings = {
    "analyze.compression.kind": "quantization",
    "analyze.goal": "faster",
    "analyze.levels.quantization": [4.0, 6.0],
    "analyze.metric": "kl",
    "analyze.quick": True,
    "analyze.options.samples": 99,
    "analyze.options.batch_size": 8,
    "analyze.options.precision": "bf16",
    "analyze.options.device": "cpu",
    "analyze.options.seed": 3,
    "analyze.options.until_settled": True,
    "analyze.options.adapted": True,
    "analyze.options.layers": "layer1.*",
    "analyze.options.types": ["Conv2d"],
    "analyze.data.source": "None",
}
RESULTS: list[Settings] = [
    {
        "results.level.{run}": 0.75,
        "results.metric.{run}": "kl",
        "layer.{run}": "fc",
        "order.{run}": "Most fragile first",
        "layers.log.{run}": True,
    },
    {"results.tab.{run}": "Curves", "curves.{run}": "By name", "curves.search.{run}": "layer"},
    {"results.tab.{run}": "More", "length.{run}": "Multiplications"},
    {
        "results.tab.{run}": "More",
        "more.{run}": "Histograms",
        "values.{run}": "activations",
        "histogram.bits.{run}": 6,
        "sensitivity.{run}": "none",
        "histogram.channel.{run}": True,
        "histogram.fold.{run}": True,
    },
]
SCHEDULE: list[Settings] = [
    {
        "goal.{run}": "bytes",
        "schedule.target.{run}": 31,
        "schedule.limits.{run}": (5, 80),
        "schedule.edits.{run}": LayerEdits(fixed={"fc": 0.0}, bounds={"conv1": (0.1, None)}),
        "schedule.repair.{run}": False,
        "adapt.{run}": "minutes",
        "form.{run}": "int8",
        "schedule.deploy_batch.{run}": 4,
        "format.{run}": "yaml",
    },
    {"choose.{run}": "gamma", "schedule.gamma.{run}": 2.5},
    {"choose.{run}": "strongest", "loss_by.{run}": "kl", "schedule.drop_repair.{run}": False},
]


def _set(app: AppTest, settings: Settings) -> None:
    for key, value in settings.items():
        app.session_state[key] = value
    app.run()
    assert not app.exception


def _seen(app: AppTest, settings: Settings) -> Settings:
    return {key: app.session_state[key] for key in settings}


def _walk(app: AppTest, settings: Settings, open_again: Callable[[dict[str, str]], AppTest]) -> None:
    first, usual_query = _usual(app, settings), dict(app.query_params)
    _set(app, settings)
    assert _seen(app, settings) == settings
    query = dict(app.query_params)
    other = open_again(query)
    assert _seen(other, settings) == settings  # a reload, or a second tab
    assert {"show-layers": "yes", **dict(other.query_params)} == {"show-layers": "yes", **query}
    go_back(app, **usual_query)
    assert {key: app.session_state[key] for key in first} == first
    go_back(app, **query)  # forward
    assert _seen(app, settings) == settings


def _usual(app: AppTest, settings: Settings) -> Settings:
    return {key: app.session_state[key] for key in settings if key in app.session_state}


def _of(run_id: str, settings: Settings) -> Settings:
    return {key.format(run=run_id): value for key, value in settings.items()}


def test_twenty_settings_and_more_are_walked() -> None:
    keys = {key for settings in (ANALYZE, *RESULTS, *SCHEDULE) for key in settings}
    assert len(keys) >= 35


@pytest.mark.parametrize("settings", first_of(RESULTS), ids=["layers", "curves", "network", "histograms"])
def test_results(app: AppTest, another_app: Callable[[], AppTest], finished_run: str, settings: Settings) -> None:
    page = "pages/results.py"
    open_layers(app, finished_run)
    _walk(app, _of(finished_run, settings), lambda query: open_page(another_app(), page, **query))


@pytest.mark.parametrize("settings", first_of(SCHEDULE), ids=["goal", "proportional", "largest loss"])
def test_schedule(app: AppTest, another_app: Callable[[], AppTest], finished_run: str, settings: Settings) -> None:
    page = "pages/targets.py"
    open_page(app, page, run=finished_run)
    _walk(app, _of(finished_run, settings), lambda query: open_page(another_app(), page, **query))


def test_analyze(app: AppTest, another_app: Callable[[], AppTest], service: Service) -> None:
    wait_for_card(app.run())
    app.radio(key="analyze.compression.kind").set_value("quantization").run()
    _set(app, ANALYZE)
    query = dict(app.query_params)
    other = another_app()
    for name, text in query.items():
        other.query_params[name] = text
    wait_for_card(other.run())
    assert _seen(other, ANALYZE) == ANALYZE
    other.button(key="analyze.run").click().run()
    app.button(key="analyze.run").click().run()
    first, second = (record.spec for record in service.runs())
    assert first == second
    assert first.sensitivity.layers == ("layer1.*",)
    assert first.sensitivity.num_samples == 99
    assert first.goal == "faster"


def test_run_on_a_page_of_a_session_that_is_gone_starts_nothing_else(app, service) -> None:
    wait_for_card(app.run())
    app.radio(key="analyze.goal").set_value("faster").run()
    app.button_group(key="analyze.data.source").set_value("None").run()
    query = dict(app.query_params)
    app.button(key="analyze.run").click()
    sent = app._tree.get_widget_states()
    app._session_state = SafeSessionState(SessionState(), lambda: None)  # as of a server that was started again
    app.session_state = type(app.session_state)(app._session_state)
    app._run(sent)
    assert not service.runs()
    (toast,) = app.toast
    assert "press Run, or what you pressed, once more" in toast.value
    assert dict(app.query_params) == query
    wait_for_card(app).button(key="analyze.run").click().run()
    spec = started(service)
    assert (spec.goal, spec.data.kind) == ("faster", "random")


def test_compare(app, another_app, service, backend, finished_run) -> None:
    page = "pages/compare.py"
    second = finish(service, backend, RunSpec(sensitivity=SensitivitySpec(levels=(0.5, 0.75), seed=2)))
    key = f"level-{second[:8]}.compare"
    app.query_params["run"] = [finished_run, second]
    open_page(app, page)
    app.selectbox(key="metric.compare").set_value("kl").run()
    app.button_group(key=key).set_value(0.5).run()
    other = another_app()
    for name, text in app.query_params.items():
        other.query_params[name] = text
    open_page(other, page)
    assert other.selectbox(key="metric.compare").value == "kl"
    assert other.button_group(key=key).value == 0.5
    assert dict(other.query_params) == dict(app.query_params)
