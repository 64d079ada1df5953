"""Present: five screens, turned by keys, found again by their address."""

import json
from types import SimpleNamespace

from streamlit.testing.v1 import AppTest

from senseapp.app.common import account
from senseapp.app.results import present
from senseapp.core.markdown import as_written
from senseapp.records.candidate import Delivery
from senseapp.records.spec import RunSpec
from tests.deployments import a_candidate, some_figures
from tests.pages.conftest import finish, go_back, open_page
from tests.pages.test_recommendation import recommend

PAGE = "pages/present.py"


def test_screens_are_turned_and_none_is_empty_or_asks_for_anything(app: AppTest, finished_run: str) -> None:
    open_page(app, PAGE, run=finished_run)
    titles = [app.title[0].value]
    while not app.button(key="present.next").disabled:
        app.button(key="present.next").click().run()
        assert not app.exception
        assert not app.selectbox
        titles.append(app.title[0].value)
        assert app.query_params["screen"] == str(len(titles))
    assert len(set(titles)) == len(titles) == 3  # no range and no pictures are known
    app.button(key="present.back").click().run()
    assert app.title[0].value == titles[1]


def test_a_link_opens_its_screen(app: AppTest, finished_run: str) -> None:
    open_page(app, PAGE, run=finished_run, screen="2")
    (chart,) = app.get("vega_lite_chart")
    assert json.loads(chart.proto.spec)["config"]["axis"]["titleFontSize"]["expr"].startswith("max(18, ")  # for a room
    go_back(app, run=finished_run, screen="99")
    assert app.button(key="present.back").disabled


def test_the_answer_is_that_of_a_measured_file(app: AppTest, finished_run: str, backend) -> None:
    recommend(backend, finished_run)
    open_page(app, PAGE, run=finished_run, screen="3")
    assert app.title[0].value == "How much can be removed?"
    go_back(app, run=finished_run, screen="1")
    assert any(each.value.startswith("## 4.00 kB → 1.20 kB") for each in app.markdown)


def test_the_answer_is_there_before_a_schedule_was_searched_for(app: AppTest, finished_run: str, backend) -> None:
    original = some_figures(0.0, 1.0, 4000)
    file = a_candidate("int8", size=1200, share=0.5, lost=0.004, metric="top1", original=original)
    backend.store.folder(finished_run).save("first", Delivery(candidates=(file,)))
    open_page(app, PAGE, run=finished_run)
    assert any(each.value == f"## {file.headline}" for each in app.markdown)
    assert app.get("vega_lite_chart")


def test_of_many_layers_those_that_lose_most_are_shown(app: AppTest, service, backend, monkeypatch) -> None:
    monkeypatch.setattr(present, "_MOST_ROWS", 3)
    open_page(app, PAGE, run=finish(service, backend, RunSpec()), screen="2")
    rows = json.loads(app.get("vega_lite_chart")[0].proto.spec)["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert len(rows) == 3
    assert app.title[0].value == "1 of 6 layers change more than 1 of 100 answers at 50 %"
    assert not any(each.value.startswith("#") for each in app.markdown)  # one title


def test_the_last_screen_has_the_code_of_a_link_that_others_can_follow(app, finished_run, monkeypatch) -> None:
    monkeypatch.setattr(account.st, "context", SimpleNamespace(url="https://lab.example.org:8501/present", cookies={}))
    open_page(app, PAGE, run=finished_run, screen="3")
    assert not app.exception
    (code,) = app.image
    assert [*code.captions] == [as_written(f"https://lab.example.org:8501/results?run={finished_run}")]
    assert "works on this computer only" not in " ".join(each.value for each in app.caption)
    monkeypatch.setattr(account.st, "context", SimpleNamespace(url="http://localhost:8501/present", cookies={}))
    app.run()
    assert "works on this computer only" in " ".join(each.value for each in app.caption)
