"""What the pages say and offer where runs go to a cluster."""

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.errors import ClusterFailed
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec
from senseapp.server import backend as backend_module
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.pages.conftest import open_layers, wait_for_card
from tests.pages.records import opener

LOST = "No Ray cluster answers at 10.0.0.1:6379."


@pytest.fixture
def lost_run(service: Service, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a run whose cluster did not answer; this machine would."""

    def unreachable(spec: RunSpec, **_: object) -> None:
        raise ClusterFailed(LOST)

    monkeypatch.setattr(backend, "_open_session", unreachable)
    monkeypatch.setattr(backend_module, "open_local_session", opener())
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", "10.0.0.1:6379")
    run_id = service.start(RunSpec())
    backend.runner.run_next()
    return run_id


@pytest.mark.slow
def test_a_run_whose_cluster_is_gone_may_go_on_here(
    app: AppTest, service: Service, backend: Backend, lost_run: str
) -> None:
    assert service.run(lost_run).state is RunState.FAILED
    open_layers(app, lost_run)
    assert app.error[0].value.replace("\u2060", "") == LOST  # joins the address, so that it becomes no link
    app.button(key="run.resume_here").click().run()
    backend.runner.run_next()
    assert service.run(lost_run).state is RunState.DONE


def test_try_again_asks_the_cluster_again(app: AppTest, service: Service, backend: Backend, lost_run: str) -> None:
    service.resume(lost_run, here=True)
    service.cancel(lost_run)
    open_layers(app, lost_run)
    app.button(key="run.resume").click().run()
    backend.runner.run_next()
    assert service.run(lost_run).error == LOST


def test_without_a_cluster_there_is_no_such_button(
    app: AppTest, lost_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SENSEAPP_RAY_ADDRESS")
    open_layers(app, lost_run)
    assert "run.resume_here" not in {button.key for button in app.button}


def test_the_plan_says_that_the_cluster_shares_the_work(app: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_card(app.run())
    assert any("**about 40 s** here" in element.value for element in app.markdown)
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", "auto")
    app.run()
    assert any("on this machine alone; the cluster shares it out" in element.value for element in app.markdown)


def test_the_device_is_automatic_until_another_is_chosen(app: AppTest, service: Service) -> None:
    wait_for_card(app.run())
    choice = app.selectbox(key="analyze.options.device")
    assert choice.value == "auto"
    assert choice.options == [
        "Automatic: a graphics card where there is one",
        "Processor",
        "NVIDIA graphics card",
        "Apple graphics processor",
    ]
    choice.select("cpu").run()
    app.button(key="analyze.run").click().run()
    (record,) = service.runs()
    assert record.spec.sensitivity.device == "cpu"
