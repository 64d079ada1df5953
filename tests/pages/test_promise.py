"""A promised loss on the Results and the Schedule page: kept, not kept, too few images."""

import math
from dataclasses import replace

from streamlit.testing.v1 import AppTest

from senseapp.metrics.bounds import images_needed
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import DeploySettings
from senseapp.records.jobs import RunState
from senseapp.records.promise import Promise, verdicts
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import DeliverTask, RecommendationTask
from senseapp.server.service import Service
from tests.deployments import a_judged_candidate, some_figures
from tests.pages.conftest import keep, open_page, texts

RESULTS, SCHEDULE = "pages/results.py", "pages/targets.py"
KEY, PROMISE = "0" * 16, Promise(most=0.01)
_ORIGINAL = some_figures(0.01, 1.0, 4000)


def a_file(changed: int, images: int = 500, *, size: int = 1200, **parts) -> Candidate:
    return a_judged_candidate(changed, images, metric="top1", size=size, original=_ORIGINAL, **parts)


def warnings(app: AppTest) -> str:
    return " ".join(each.value for each in app.warning)


def downloads(app: AppTest) -> list[str]:
    return [each.label for each in app.get("download_button") if each.label.startswith("Get the")]


def test_a_file_stands_with_its_bound_and_a_promise_offers_those_that_keep_it(app, finished_run, backend) -> None:
    mild, strong = a_file(0), a_file(4, size=1000)  # both lose less than a point; only one is shown to
    keep(backend, finished_run, KEY, mild, strong)
    open_page(app, RESULTS, run=finished_run)
    assert not app.exception
    assert f"## {strong.headline}" in texts(app)
    assert "with 95 % certainty" not in texts(app)
    app.toggle(key=f"promised.{finished_run}").set_value(True).run()
    assert not app.exception
    bound = f"at most {math.ceil(1000 * verdicts([mild, strong], PROMISE)[mild.file].bound) / 10} points"
    assert f"right, 100 before ({bound} lost, with 95 % certainty; 500 unseen images)" in texts(app)
    assert "The bounds of all 2 files and variants tested on these images hold together for this promise" in texts(app)
    assert strong.interval_text not in texts(app)
    assert "It is the smallest file that runs and is shown to lose at most 1 point, with 95 % certainty." in texts(app)
    assert not warnings(app)


def test_where_no_file_keeps_it_none_is_offered_and_what_it_takes_is_said(app, finished_run, service, backend) -> None:
    keep(backend, finished_run, KEY, a_file(4))
    open_page(app, RESULTS, run=finished_run, promised="yes", **{"show-files": "yes"})
    assert not app.exception
    assert "## Keep the original" in texts(app)
    reason = "No file that is clearly smaller or faster is shown to lose at most 1 point, with 95 % certainty."
    assert reason in texts(app)
    most = "What can be promised with these 500 unseen images is at most 1.9 points: .onnx file in 8-bit numbers."
    assert most in texts(app)
    assert f"it takes about {images_needed(0.01, 1 - 0.0425, rate=4 / 500):,} unseen images" in texts(app)
    assert "no: not shown to keep what is promised" in texts(app)
    assert downloads(app) == ["Get the .onnx file in 8-bit numbers, 1.20 kB"]
    original = DeliverTask(run_id=finished_run, settings=DeploySettings(kind="float"))
    keep(backend, finished_run, original.key, replace(a_file(0, form="onnx"), file="deployed-00000000000000ff.onnx"))
    app.run()
    assert downloads(app)[0].startswith("Get the file that runs (.onnx)")
    assert "original as .onnx file" in texts(app)
    app.button(key=f"recommendation.start.{finished_run}").click().run()
    task = RecommendationTask(run_id=finished_run, promise=PROMISE)
    assert service.work.progress(task).state is RunState.QUEUED


def test_too_few_images_are_said_before_a_search(app: AppTest, finished_run, backend: Backend) -> None:
    keep(backend, finished_run, KEY, a_file(0, 120))
    open_page(app, RESULTS, run=finished_run, promised="yes")
    assert not app.exception
    assert "takes at least 315 unseen images. On the 120 unseen images of this run even a file" in warnings(app)
    assert "What can be promised" not in texts(app)  # the warning says it
    assert not [each for each in app.button if each.key == f"recommendation.start.{finished_run}"]


def test_the_schedule_page_makes_a_file_for_a_promise(app: AppTest, task: DeliverTask, service: Service) -> None:
    open_page(app, SCHEDULE, run=task.run_id)
    app.toggle(key=f"promised.{task.run_id}").set_value(True).run()
    app.button(key=f"schedule.deploy.{task.run_id}").click().run()
    assert not app.exception
    assert service.work.progress(replace(task, promise=PROMISE)).state is RunState.QUEUED
    assert service.work.progress(task) is None


def test_the_schedule_page_offers_only_files_that_keep_it(app: AppTest, task: DeliverTask, backend: Backend) -> None:
    good = a_file(0, form="onnx", size=3000, schedule=task.schedule, tried=1)
    keep(backend, task.run_id, replace(task, promise=PROMISE).key, good, a_file(8, schedule=task.schedule, tried=1))
    open_page(app, SCHEDULE, run=task.run_id, promised="yes")
    assert not app.exception
    assert "It is not shown to lose at most 1 point, with 95 % certainty: 500 unseen images bound its loss by" in (
        warnings(app)
    )
    assert downloads(app) == ["Get the file that runs (.onnx), 3.00 kB"]
    app.button_group(key=f"tolerated.{task.run_id}").set_value(0.002).run()
    assert "takes at least 1,578 unseen images" in warnings(app)
    assert "would not help" not in warnings(app)  # of one file: the number of images decides first
