"""Present: five screens, turned by keys, found again by their address."""

import json

from streamlit.testing.v1 import AppTest

from tests.pages.conftest import go_back, open_page

PAGE = "pages/present.py"


def test_five_screens_are_turned_and_none_asks_for_anything(app: AppTest, finished_run: str) -> None:
    open_page(app, PAGE, run=finished_run)
    titles = [app.title[0].value]
    while not app.button(key="present.next").disabled:
        app.button(key="present.next").click().run()
        assert not app.exception
        assert not app.selectbox
        titles.append(app.title[0].value)
        assert app.query_params["screen"] == str(len(titles))
    assert len(set(titles)) == 5
    app.button(key="present.back").click().run()
    assert app.title[0].value == titles[3]


def test_a_link_opens_its_screen(app: AppTest, finished_run: str) -> None:
    open_page(app, PAGE, run=finished_run, screen="2")
    (chart,) = app.get("vega_lite_chart")
    assert json.loads(chart.proto.spec)["config"]["axis"]["titleFontSize"] > 15  # for a room
    go_back(app, run=finished_run, screen="99")
    assert app.button(key="present.back").disabled
