"""The System page, and the log of a failed run on its own page."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.errors import InvalidDataset
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec
from senseapp.runs.backend import Backend
from senseapp.runs.service import Service
from tests.pages.conftest import finish, open_page


def texts(app: AppTest) -> str:
    return " ".join(element.value for element in (*app.markdown, *app.caption))


def test_the_system_page_shows_versions_work_memory_and_disk(app: AppTest, finished_run: str, service: Service) -> None:
    service.start(RunSpec())
    open_page(app, "pages/system.py")
    assert not app.exception
    shown = texts(app)
    for part in (
        "**0 of 1**",
        "**1 of 20**",
        "Memory of the server",
        "Memory of runs",
        "as the server",
        "Threads of the engine",
        "Free",
        "Python 3.",
    ):
        assert part in shown
    versions = dict(app.dataframe[0].value.to_numpy().tolist())
    assert versions["senseapp"] == "0.1.0"
    assert {"streamlit", "torch", "timm"} <= set(versions)


def test_it_tells_nothing_about_anybodys_runs(app: AppTest, service: Service) -> None:
    run_id = service.start(RunSpec(), title="A secret title")
    open_page(app, "pages/system.py")
    assert "secret" not in texts(app)
    assert run_id not in texts(app)


@pytest.fixture
def failing(service: Service, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> str:
    def refuse(*arguments: object, **named: object) -> None:
        raise InvalidDataset("There is no picture. Bring some.")

    monkeypatch.setattr(backend, "_open_session", refuse)
    run_id = finish(service, backend, RunSpec())
    assert service.run(run_id).state is RunState.FAILED
    return run_id


def test_a_failed_run_shows_its_log_to_its_owner(app: AppTest, failing: str) -> None:
    open_page(app, "pages/run.py", run=failing)
    assert not app.exception
    assert [block.label for block in app.expander] == ["Log of this run"]
    log = app.code[0].value
    assert "Loading the model and the images" in log
    assert "InvalidDataset: There is no picture. Bring some." in log


def test_people_with_the_link_do_not_see_the_log(
    app: AppTest, failing: str, service: Service, backend: Backend, tmp_path: Path
) -> None:
    Service(backend).share(failing, shared=True)
    link = backend.store.record(failing).link
    service.owner = "somebody else"
    open_page(app, "pages/run.py", run=link)
    assert not app.exception
    assert "There is no picture" in app.error[0].value
    assert not app.expander
