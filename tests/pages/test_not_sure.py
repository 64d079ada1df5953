"""Somebody who is not sure which compression to choose: all are estimated, the one that pays most is named."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from senseapp import descriptions
from senseapp.records.jobs import RunState
from senseapp.server.backend import Backend
from senseapp.server.leaderboard import bytes_removable
from senseapp.server.service import Service
from tests.pages.conftest import wait_for_card
from tests.pages.test_proof import texts


def unsure(app: AppTest) -> AppTest:
    wait_for_card(app.run())
    return app.radio(key="analyze.compression.kind").set_value("unsure").run()


def test_all_are_estimated_and_the_one_that_pays_most_can_be_measured(
    app: AppTest, service: Service, backend: Backend
) -> None:
    unsure(app)
    assert app.button(key="analyze.run").disabled
    app.button(key="analyze.unsure.start").click().run()
    assert not app.exception
    runs = service.runs()
    assert sorted(record.spec.sensitivity.compression.kind for record in runs) == sorted(descriptions.names())
    assert {record.spec.sensitivity.mode for record in runs} == {"quick"}
    (progress,) = app.get("progress")
    assert "Estimating each compression from one backward pass: 1 of 3" in progress.proto.text
    assert "1st in the queue" in texts(app)
    while backend.runner.run_next():
        pass
    wait_for_card(app.run())
    assert not app.exception
    savings = {
        record.spec.sensitivity.compression.kind: bytes_removable(service.result(record.run_id), "kl", allowed=0.02)
        or 0
        for record in runs
    }
    best = max(savings, key=savings.__getitem__)
    label = descriptions.get(best).label
    assert f"**By estimate, {label.lower()} pays most here.**" in texts(app)
    assert f"**{label}**: {100 * savings[best]:.0f} % of the bytes." in texts(app)
    assert "Estimated, not measured, on 512 images" in texts(app)
    app.button(key=f"analyze.unsure.{best}").click().run()
    [measured] = [record for record in service.runs() if record.spec.sensitivity.mode == "exact"]
    assert measured.spec.sensitivity.compression.kind == best


def test_an_estimate_that_stopped_says_so(app: AppTest, service: Service, backend: Backend) -> None:
    unsure(app)
    app.button(key="analyze.unsure.start").click().run()
    service.cancel(service.runs()[0].run_id)
    while backend.runner.run_next():
        pass
    wait_for_card(app.run())
    assert not app.exception
    assert any("stopped" in error.value for error in app.error)
    assert service.runs()[0].state is RunState.CANCELLED


def test_what_is_left_of_the_estimates_can_be_cancelled_and_begun_again(
    app: AppTest, service: Service, backend: Backend
) -> None:
    unsure(app)
    app.button(key="analyze.unsure.start").click().run()
    backend.runner.run_next()
    app.run()
    (progress,) = app.get("progress")
    assert progress.proto.value == 100 // len(descriptions.names())
    app.button(key="analyze.unsure.cancel").click().run()
    assert [record.state for record in service.runs()].count(RunState.CANCELLED) == len(descriptions.names()) - 1
    app.button(key="analyze.unsure.again").click().run()
    assert not app.exception
    assert "Estimate all" in app.button(key="analyze.unsure.start").label
