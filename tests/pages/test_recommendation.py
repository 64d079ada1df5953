"""The answer on the Results page: found, on its way, offered, refused; and where the Schedule page begins."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.compressions import QuantizationConfig
from senseapp.core.errors import InvalidCheckpoint
from senseapp.records.jobs import RunState
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import ResourceBudget, TriedTarget, ValidationResult
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.runs.backend import Backend
from senseapp.runs.schedule_tasks import RecommendationTask
from senseapp.runs.service import Service
from senseapp.schedules.recommend import usual_limits
from senseapp.schedules.trade_off import schedule_for
from tests.pages.conftest import finish, open_page
from tests.pages.records import change
from tests.pages.test_proof import texts

RESULTS, SCHEDULE = "pages/results.py", "pages/targets.py"


def recommend(backend: Backend, run_id: str, *, target: float = 0.37, kind: str = "params") -> Recommendation:
    """Keep a recommendation of the run with made-up losses, its proof, and a file."""
    folder = backend.store.folder(run_id)
    result = folder.load_result()
    schedule = schedule_for(result, ResourceBudget(kind=kind, target=target), limits=usual_limits(result))
    lost, uniform = change("top1", 0.006, 0.008), change("top1", 0.186, 0.03)
    validation = ValidationResult(schedule=schedule, changes=(lost, change("kl", 0.2, 0.1)), uniform=(uniform,))
    found = Recommendation(
        kind=kind,
        metric="top1",
        allowed_drop=0.01,
        tried=tuple(TriedTarget(figure=figure, changes=(lost,)) for figure in (0.2, 0.4)),
        uniform=tuple(TriedTarget(figure=figure, changes=(uniform,)) for figure in (0.2, 0.4)),
        schedule=schedule,
        validation=validation,
    )
    task = RecommendationTask(run_id=run_id)
    proof = task.proof(found)
    folder.save(task.key, found)
    folder.save(proof.key, validation)
    folder.compressed_model(proof.key).write_bytes(bytes(4000))
    folder.compressed_model(proof.key).with_suffix(".sparse.safetensors.gz").write_bytes(bytes(1500))
    return found


def test_the_page_opens_with_the_answer_its_chart_and_the_file(app: AppTest, finished_run, backend) -> None:
    percent = 100 * recommend(backend, finished_run).schedule.achieved["params"]
    open_page(app, RESULTS, run=finished_run)
    assert not app.exception
    assert f"## You can remove {percent:.0f} % of the weights and keep 97.4 % of the answers right" in texts(app)
    assert "98.0 % before, 97.4 % after, 0.6 points lost (−0.2 to 1.4; 1.0 allowed)" in texts(app)
    assert "The same level in every layer loses 18.6 points." in texts(app)
    [button] = [each for each in app.get("download_button") if each.label.startswith("Download the model")]
    assert button.label == "Download the model (1.50 kB)"  # the smallest file
    assert button.proto.type == "primary"
    chart = json.loads(app.get("vega_lite_chart")[0].proto.spec)
    assert "Weights removed (%)" in json.dumps(chart)
    assert "Most fragile: layer2.0.conv1" in texts(app)


def test_another_loss_can_be_tolerated_which_is_searched_on_request(
    app: AppTest, finished_run, service, backend
) -> None:
    recommend(backend, finished_run)
    open_page(app, RESULTS, run=finished_run)
    control = app.segmented_control(key=f"recommendation.allowed.{finished_run}")
    assert (control.label, control.options) == ("Tolerable loss (points)", ["0.2", "0.5", "1", "2"])
    control.set_value(0.02).run()
    assert not app.exception
    assert "You can remove" not in texts(app)
    app.button(key=f"recommendation.start.{finished_run}").click().run()
    task = RecommendationTask(run_id=finished_run, allowed_drop=0.02)
    assert service.work.progress(task).state is RunState.QUEUED
    app.segmented_control(key=f"recommendation.allowed.{finished_run}").set_value(0.01).run()
    assert "You can remove" in texts(app)


def test_the_schedule_page_begins_with_what_is_recommended_and_its_proof(app: AppTest, finished_run, backend) -> None:
    recommend(backend, finished_run)
    open_page(app, SCHEDULE, run=finished_run)
    assert app.slider(key=f"schedule.target.{finished_run}").value == 37
    assert "**0.200 nats**" in texts(app)
    assert ":gray[not yet]" not in texts(app)


@pytest.mark.parametrize(("bits", "reached"), [(5.3, 5.3), (11.0, 10.4)], ids=["as measured", "some layers in float"])
def test_bits_begin_with_what_is_recommended_too(
    app: AppTest, service: Service, backend: Backend, bits: float, reached: float
) -> None:
    spec = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(2, 4, 8)))
    run_id = finish(service, backend, spec)
    recommend(backend, run_id, target=bits, kind="bits")
    open_page(app, SCHEDULE, run=run_id)
    assert not app.exception
    assert app.slider(key=f"schedule.bits.{run_id}").value == bits
    open_page(app, RESULTS, run=run_id)
    assert f"You can store the weights in {reached:g} bits instead of 32 and keep 97.4 %" in texts(app)


def test_where_nothing_pays_that_is_the_answer(app: AppTest, finished_run, backend) -> None:
    found = recommend(backend, finished_run)
    tried = tuple(replace(each, changes=(change("top1", 0.05, 0.01),)) for each in found.tried)
    nothing = replace(found, schedule=None, validation=None, tried=tried)
    backend.store.folder(finished_run).save(RecommendationTask(run_id=finished_run).key, nothing)
    open_page(app, RESULTS, run=finished_run)
    assert "## Nothing can be saved for a loss of at most 1.0 points" in texts(app)
    assert "To remove 20 % of the weights already costs 5.0 points (4.0 to 6.0), on 512 images." in texts(app)
    assert not [each for each in app.get("download_button") if each.label.startswith("Download the model")]


def test_it_is_offered_with_its_time_and_shows_how_far_it_is(app: AppTest, finished_run, service: Service) -> None:
    open_page(app, RESULTS, run=finished_run)
    task, key = RecommendationTask(run_id=finished_run), f"recommendation.start.{finished_run}"
    assert app.button(key=key).label.startswith("Find how much can be saved (")
    app.button(key=key).click().run()
    assert not app.exception
    assert service.work.progress(task).state is RunState.QUEUED
    assert "1st in the queue" in texts(app)
    app.button(key=f"recommendation.stop.{finished_run}").click().run()
    assert service.work.progress(task).state is RunState.CANCELLED


def test_why_there_is_none_is_said(
    app: AppTest, finished_run, service, backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidCheckpoint("The checkpoint is gone.")

    monkeypatch.setattr(RecommendationTask, "carry_out", refuse)
    service.work.start(RecommendationTask(run_id=finished_run))
    backend.runner.run_next()
    open_page(app, RESULTS, run=finished_run)
    assert app.error[0].value == "The checkpoint is gone."
    assert app.button(key=f"recommendation.start.{finished_run}")
