"""Results, Schedule, the report, Present and the links of the sidebar show one decision, wherever it was asked for."""

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import pytest
from markupsafe import escape
from streamlit.testing.v1 import AppTest

from senseapp.app.common import account, address, run_guard
from senseapp.server.backend import Backend
from tests.pages.conftest import go_back, open_page
from tests.pages.test_recommendation import RESULTS, SCHEDULE, recommend

PRESENT = "pages/present.py"


@pytest.fixture
def sidebar_links(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """The query of the sidebar's link to each run, as it was drawn last."""
    drawn: dict[str, dict[str, str]] = {}

    def recorded(scope: str) -> dict[str, str]:
        drawn[scope] = address.address_of(scope)
        return drawn[scope]

    monkeypatch.setattr(account, "address_of", recorded)
    return drawn


def present_link(app: AppTest) -> dict[str, str]:
    [query] = [link.proto.query_string for link in app.get("page_link") if link.proto.label == "Present"]
    return dict(parse_qsl(query))


@pytest.mark.parametrize(
    ("name", "value", "text"), [("tolerated", 0.002, "0.2"), ("for", "targets", "targets"), ("promised", True, "yes")]
)
def test_the_report_and_present_show_what_was_just_asked_for(
    app: AppTest,
    finished_run: str,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: object,
    text: str,
) -> None:
    offered: dict[str, Callable[[], bytes]] = {}
    monkeypatch.setattr(run_guard, "offer_file", lambda label, make, *rest, **look: offered.update({label: make}))
    recommend(backend, finished_run)
    open_page(app, RESULTS, run=finished_run)
    usual = heading_of(app)
    for asked, query in ((value, {name: text}), (app.session_state[f"{name}.{finished_run}"], {})):
        app.session_state[f"{name}.{finished_run}"] = asked
        app.run()
        assert not app.exception
        heading = heading_of(app)
        assert (heading == usual) == (not query)
        assert f'<p class="headline">{escape(heading)}</p>' in offered["Download report"]().decode()
        assert present_link(app) == {"run": finished_run, **query}
    open_page(app, PRESENT, **(present_link(app) | {name: text}))
    assert heading_of(app) != usual


def heading_of(app: AppTest) -> str:
    """Return the first heading of second rank, which is the decision."""
    return next(part.value for part in app.markdown if part.value.startswith("## ")).removeprefix("## ")


def test_what_may_be_lost_is_the_same_on_results_and_schedule(
    app: AppTest, finished_run: str, backend: Backend, sidebar_links: dict[str, Any]
) -> None:
    recommend(backend, finished_run)
    open_page(app, SCHEDULE, run=finished_run)  # its widgets begin with the usual loss
    open_page(app, RESULTS, run=finished_run)
    app.toggle(key=f"promised.{finished_run}").set_value(True).run()
    app.segmented_control(key=f"tolerated.{finished_run}").set_value(0.002).run()
    open_page(app, SCHEDULE, run=finished_run)  # by a link without settings, as Results has
    assert app.segmented_control(key=f"tolerated.{finished_run}").value == 0.002
    assert app.toggle(key=f"promised.{finished_run}").value
    app.segmented_control(key=f"tolerated.{finished_run}").set_value(0.005).run()
    link = {"run": finished_run, "promised": "yes", "tolerated": "0.5"}
    assert sidebar_links[finished_run] == link
    open_page(app, RESULTS, **link)
    assert app.segmented_control(key=f"tolerated.{finished_run}").value == 0.005
    assert present_link(app) == link


def test_a_link_and_the_browsers_back_hold_for_the_links_of_the_page_too(
    app: AppTest, finished_run: str, backend: Backend, sidebar_links: dict[str, Any]
) -> None:
    recommend(backend, finished_run)
    link = {"run": finished_run, "for": "targets", "tolerated": "0.2"}
    open_page(app, SCHEDULE, **link)
    assert sidebar_links[finished_run] == link  # also the goal, which Schedule does not show
    open_page(app, RESULTS, **link)
    assert present_link(app) == link
    go_back(app, run=finished_run)
    assert present_link(app) == {"run": finished_run}
