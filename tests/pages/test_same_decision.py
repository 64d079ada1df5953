"""Results, Schedule, the report, Present and the links of the sidebar show one decision, wherever it was asked for."""

from dataclasses import replace
from urllib.parse import parse_qsl

import pytest
from markupsafe import escape

from senseapp.app.common import account, address, run_guard
from senseapp.prove.recommend import usual_limits
from senseapp.records.candidate import Delivery
from senseapp.records.schedule import ResourceBudget
from senseapp.solve.trade_off import schedule_for
from tests.deployments import a_candidate, some_figures
from tests.pages.conftest import go_back, open_layers, open_page
from tests.pages.test_recommendation import RESULTS, SCHEDULE, recommend


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The queries of the sidebar's links, as they are drawn."""
    drawn: list[dict[str, str]] = []
    monkeypatch.setattr(account, "address_of", lambda scope: drawn.append(address.address_of(scope)) or drawn[-1])
    return drawn


def present_link(app) -> dict[str, str]:
    [query] = [link.proto.query_string for link in app.get("page_link") if link.proto.label == "Present"]
    return dict(parse_qsl(query))


def heading_of(app) -> str:
    return next(part.value for part in app.markdown if part.value.startswith("## ")).removeprefix("## ")


@pytest.mark.parametrize(
    ("name", "value", "text"), [("tolerated", 0.002, "0.2"), ("for", "targets", "targets"), ("promised", True, "yes")]
)
def test_the_report_and_present_show_what_was_just_asked_for(
    app, finished_run, backend, monkeypatch, name: str, value: object, text: str
) -> None:
    offered = {}
    monkeypatch.setattr(run_guard, "offer_file", lambda label, make, *rest, **look: offered.update({label: make}))
    recommend(backend, finished_run)
    open_page(app, RESULTS, run=finished_run)
    usual, key = heading_of(app), f"{name}.{finished_run}"
    for asked, query in ((value, {name: text}), (app.session_state[key], {})):
        app.session_state[key] = asked
        app.run()
        assert (heading_of(app) == usual) == (not query)
        assert f'<p class="headline">{escape(heading_of(app))}</p>' in offered["Download report"]().decode()
        assert present_link(app) == {"run": finished_run, **query}
    open_page(app, "pages/present.py", run=finished_run, **{name: text})
    assert heading_of(app) != usual


def test_links_follow_what_is_clicked_in_the_layers(app, finished_run) -> None:
    open_layers(app, finished_run)
    for settings in ({"level": "0.75"}, {"level": "0.75", "metric": "top1"}, {"metric": "top1"}):
        app.button_group(key=f"results.level.{finished_run}").set_value(float(settings.get("level", 0.5)))
        app.selectbox(key=f"results.metric.{finished_run}").set_value(settings.get("metric", "kl")).run()
        assert {"show-layers": "yes"} | present_link(app) == {"run": finished_run, "show-layers": "yes", **settings}


def test_what_may_be_lost_is_the_same_on_results_and_schedule(app, finished_run, backend, links) -> None:
    recommend(backend, finished_run)
    open_page(app, SCHEDULE, run=finished_run)  # its widgets begin with the usual loss
    open_page(app, RESULTS, run=finished_run)
    app.toggle(key=f"promised.{finished_run}").set_value(True).run()
    app.segmented_control(key=f"tolerated.{finished_run}").set_value(0.002).run()
    open_page(app, SCHEDULE, run=finished_run)  # by a link without settings, as Results has
    assert app.segmented_control(key=f"tolerated.{finished_run}").value == 0.002
    assert app.toggle(key=f"promised.{finished_run}").value
    app.segmented_control(key=f"tolerated.{finished_run}").set_value(0.005).run()
    assert links[-1] == {"run": finished_run, "promised": "yes", "tolerated": "0.5"}
    open_page(app, RESULTS, **links[-1])
    assert app.segmented_control(key=f"tolerated.{finished_run}").value == 0.005
    assert present_link(app) == links[-1]


def test_schedule_opens_on_that_of_the_recommended_file(app, finished_run, backend) -> None:
    recommend(backend, finished_run)
    folder = backend.store.folder(finished_run)
    result = folder.load_result()
    other = schedule_for(result, ResourceBudget(kind="params", target=0.44), limits=usual_limits(result))
    file = a_candidate("onnx", size=300, share=0.3, lost=0.004, metric="top1", original=some_figures(0.01, 1.0, 4000))
    folder.save("second", Delivery(candidates=(replace(file, schedule=other),)))
    open_page(app, SCHEDULE, run=finished_run)
    assert app.slider(key=f"schedule.target.{finished_run}").value == 44


def test_a_link_and_the_browsers_back_hold_for_the_links_of_the_page_too(app, finished_run, backend, links) -> None:
    recommend(backend, finished_run)
    asked = {"run": finished_run, "for": "targets", "tolerated": "0.2"}
    open_page(app, SCHEDULE, **asked)
    assert links[-1] == asked  # also the goal, which Schedule does not show
    open_page(app, RESULTS, **asked)
    assert present_link(app) == asked
    go_back(app, run=finished_run)
    assert present_link(app) == {"run": finished_run}
