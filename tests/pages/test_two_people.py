"""Every page, opened by somebody else: with an id that is not theirs, with a link, and with nonsense."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.runtime.scriptrunner import script_runner
from streamlit.testing.v1 import AppTest

from senseapp.app.common import backend as ui_backend
from senseapp.app.common.backend import visitor
from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.pages.conftest import APP, finish, open_page

PAGES = sorted(f"pages/{path.name}" for path in (Path(APP).parent / "pages").glob("*.py"))
ABOUT_A_RUN = ("pages/results.py", "pages/targets.py", "pages/present.py")
TITLE = "Unannounced network"
ISSUER = "https://id.example"
BOB = {"is_logged_in": True, "iss": ISSUER, "sub": "7", "name": "Bob Example", "email": "team@example.com"}
NOBODY = {"is_logged_in": False}


@pytest.fixture
def anns_run(service: Service, finished_run: str) -> str:
    service.rename(finished_run, TITLE)
    return finished_run


@pytest.fixture
def visited(
    app: AppTest, service: Service, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], AppTest]:
    """Return the app as somebody with these claims of a login visits it."""

    def run_main(path: str) -> None:  # senseapp.app.server.serve switches off the pages that would come without app.py
        runpy.run_path(path, run_name="__main__")

    def visit(claims: dict[str, Any]) -> AppTest:
        app.user = claims
        app.secrets = {"auth": {"client_id": "x"}}
        return app

    monkeypatch.setattr(script_runner, "_mpa_v1", run_main)
    monkeypatch.setattr(ui_backend, "service", lambda: type(service)(backend, visitor().owner))
    return visit


def everything(app: AppTest) -> str:
    """Return all that the page holds, widgets and hidden values included."""
    return " ".join(str(getattr(node, "proto", "")) for block in (app.main, app.sidebar) for node in block)


def test_there_are_pages_to_try() -> None:
    assert {*ABOUT_A_RUN, "pages/runs.py"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_no_page_shows_another_person_anything_of_a_run(
    visited: Callable[[dict[str, Any]], AppTest], anns_run: str, page: str
) -> None:
    app = visited(BOB)
    for asked in (anns_run, f"../{anns_run}"):
        open_page(app, page, run=asked)
        assert not app.exception
        assert TITLE not in everything(app)
        assert "Most fragile: layer2.0.conv1" not in everything(app)
        if page in ABOUT_A_RUN:
            assert "There is no such run" in app.error[0].value


@pytest.mark.parametrize("page", PAGES)
def test_who_has_not_logged_in_sees_the_login_only(
    visited: Callable[[dict[str, Any]], AppTest], anns_run: str, page: str
) -> None:
    app = visited(NOBODY)
    open_page(app, page, run=anns_run)
    assert [title.value for title in app.title] == ["Log in"]
    assert TITLE not in everything(app)


def test_a_link_opens_the_pages_of_its_run_to_who_has_not_logged_in(
    visited: Callable[[dict[str, Any]], AppTest], service: Service, anns_run: str
) -> None:
    link = service.share(anns_run, shared=True)
    app = visited(NOBODY)
    for page in ("pages/results.py", "pages/targets.py"):
        open_page(app, page, run=link)
        assert app.title[0].value == TITLE
        assert anns_run not in everything(app)
    for page in ("pages/analyze.py", "pages/runs.py"):
        open_page(app, page, run=link)
        assert app.title[0].value == "Log in"


def test_runs_belong_to_the_subject_of_the_login_not_to_the_mail_address(
    visited: Callable[[dict[str, Any]], AppTest], service: Service, backend: Backend
) -> None:
    bob = type(service)(backend, f"{ISSUER}|7")
    bob.rename(finish(bob, backend, RunSpec()), "A run by Bob")
    for claims, sees in (
        (BOB, True),
        (BOB | {"email": "new@example.com", "name": "Robert"}, True),
        (BOB | {"sub": "8"}, False),
        (BOB | {"iss": "https://other.example"}, False),
    ):
        app = visited(claims)
        open_page(app, "pages/runs.py")
        assert ("A run by Bob" in everything(app)) is sees
        assert claims["name"] in app.sidebar.caption[0].value


def test_the_system_page_is_for_operators(
    visited: Callable[[dict[str, Any]], AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(visited(BOB), "pages/system.py")
    assert "Only the operators" in app.error[0].value
    assert not app.dataframe
    monkeypatch.setenv("SENSEAPP_OPERATORS", f"{ISSUER}|6 {ISSUER}|7")
    assert app.run().dataframe


@pytest.mark.parametrize("claim", ["iss", "sub"])
def test_a_login_that_does_not_say_who_it_is_lets_nobody_in(
    visited: Callable[[dict[str, Any]], AppTest], claim: str
) -> None:
    app = visited({name: value for name, value in BOB.items() if name != claim}).run()
    assert app.title[0].value == "Log in"
    assert "lacks an issuer or a subject" in app.error[0].value


def test_each_of_several_providers_has_its_button(visited: Callable[[dict[str, Any]], AppTest]) -> None:
    app = visited(NOBODY)
    app.secrets = {"auth": {"google": {"client_id": "x"}, "keycloak": {"client_id": "y"}, "redirect_uri": "z"}}
    app.run()
    assert [button.label for button in app.button] == ["Log in with Google", "Log in with Keycloak"]
