"""The System page, and the log of a failed run on its own page."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.common import backend as ui_backend
from senseapp.core.errors import InvalidDataset, StorageFailed
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec
from senseapp.server import operations
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.pages.conftest import finish, open_page, texts

FULL = SimpleNamespace(total=10**9, used=10**9, free=0)


def test_the_system_page_shows_versions_work_memory_and_disk(app: AppTest, finished_run: str, service: Service) -> None:
    run_id = service.start(RunSpec(), title="A secret title")
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
    assert "secret" not in shown
    assert run_id not in shown
    versions = dict(app.dataframe[0].value.to_numpy().tolist())
    assert versions["senseapp"] == "0.1.0"
    assert {"streamlit", "torch", "timm"} <= set(versions)


@pytest.fixture
def failing(service: Service, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> str:
    def refuse(*arguments: object, **named: object) -> None:
        raise InvalidDataset("There is no picture. Bring some.")

    monkeypatch.setattr(backend, "_open_session", refuse)
    run_id = finish(service, backend, RunSpec())
    assert service.run(run_id).state is RunState.FAILED
    return run_id


def test_a_failed_run_shows_its_log_to_its_owner(app: AppTest, failing: str) -> None:
    open_page(app, "pages/results.py", run=failing)
    assert not app.exception
    assert [block.label for block in app.expander] == ["Log of this run"]
    log = app.code[0].value
    assert "Reading the model and the images" in log
    assert "InvalidDataset: There is no picture. Bring some." in log


def test_people_with_the_link_do_not_see_the_log(
    app: AppTest, failing: str, service: Service, backend: Backend, tmp_path: Path
) -> None:
    Service(backend).share(failing, shared=True)
    link = backend.store.record(failing).link
    service.owner = "somebody else"
    open_page(app, "pages/results.py", run=link)
    assert not app.exception
    assert "There is no picture" in app.error[0].value
    assert not app.expander


def test_it_says_what_is_wrong_with_a_damaged_database(app: AppTest, finished_run: str, backend: Backend) -> None:
    database = backend.home / "senseapp.sqlite3"
    for name in ("", "-wal", "-shm"):
        database.with_name(database.name + name).unlink(missing_ok=True)
    database.write_bytes(b"no database at all" * 1000)
    open_page(app, "pages/system.py")
    assert not app.exception
    assert "The database senseapp.sqlite3 cannot be used" in app.error[0].value
    assert "not known" in texts(app)
    assert "Free memory" in texts(app)


def test_it_says_that_the_disk_is_full(app: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations.shutil, "disk_usage", lambda folder: FULL)
    open_page(app, "pages/system.py")
    assert not app.exception
    assert "The disk has 0 MB left" in app.error[0].value


def admitted(page: str) -> None:
    from senseapp.app.common.account import admit

    admit(page)


@pytest.mark.parametrize("page", ["system", "runs"])
def test_a_home_that_cannot_be_used_leaves_the_system_page(monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    def refuse() -> Service:
        raise StorageFailed("The database senseapp.sqlite3 cannot be used: file is not a database.")

    monkeypatch.setattr(ui_backend, "service", refuse)
    shown = AppTest.from_function(admitted, args=(page,), default_timeout=15).run()
    assert not shown.exception
    assert [title.value for title in shown.title] == ["senseapp cannot work here"]
    assert "file is not a database" in shown.error[0].value
    assert ("Free memory" in texts(shown)) == (page == "system")
