"""The answer on the Results page: found, on its way, offered, refused; and where the Schedule page begins."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block, Element, Node

from senseapp.compressions import QuantizationConfig
from senseapp.prove.decision import decision
from senseapp.prove.recommend import usual_limits
from senseapp.records.candidate import Candidate, Delivery
from senseapp.records.jobs import RunState
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import ResourceBudget, Schedule, TriedTarget, ValidationResult
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.service import Service
from senseapp.solve.trade_off import schedule_for
from tests.cases import first_of
from tests.deployments import a_candidate, some_figures
from tests.pages.conftest import finish, go_back, open_page, texts
from tests.pages.records import change

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
    files = candidates_of(schedule, proof.key)
    folder.save(task.key, Delivery(candidates=files))
    for file in files:
        (folder.path / file.file).write_bytes(bytes(file.figures.file_bytes))
    return found


def candidates_of(schedule: Schedule, key: str) -> tuple[Candidate, ...]:
    """Return the files of a schedule and, in int8, of the original weights: of a network of 4,000 bytes."""
    original = some_figures(0.01, 1.0, 4000)
    packed = f"compressed-{key}.sparse.safetensors.gz"
    scheduled = {"schedule": schedule, "reconstruction": "repaired", "original": original, "metric": "top1"}
    return (
        a_candidate("weights", size=4000, share=1.0, lost=0.006, file=f"compressed-{key}.safetensors", **scheduled),
        a_candidate("small", size=1500, share=1.0, lost=0.006, file=packed, **scheduled),
        a_candidate("onnx", size=4001, share=1.0, lost=0.006, **scheduled),
        a_candidate("int8", size=1200, share=0.5, lost=0.004, metric="top1", original=original),
    )


def test_the_page_opens_with_the_file_to_take_its_own_figures_and_its_button(app, finished_run, backend) -> None:
    recommend(backend, finished_run)
    open_page(app, RESULTS, run=finished_run)
    assert not app.exception
    best = backend.store.folder(finished_run).candidates()[-1]
    assert f"## {best.headline}" in texts(app)
    assert "4.00 kB → 1.20 kB · 0.50 × the time (0.49 to 0.51)" in texts(app)
    [button] = [each for each in app.get("download_button") if each.label.startswith("Get the file that runs")]
    assert button.label == "Get the file that runs (.onnx), 1.20 kB"
    assert button.proto.type == "primary"
    assert "Size on disk" in json.dumps(json.loads(app.get("vega_lite_chart")[0].proto.spec))
    assert "It is the smallest file that runs and was measured to lose at most 1 point." in texts(app)


@pytest.mark.parametrize("page", [RESULTS, "pages/present.py"])
def test_an_original_that_fails_at_its_task_is_said_before_the_answer(app, finished_run, backend, page: str) -> None:
    recommend(backend, finished_run)
    folder = backend.store.folder(finished_run)
    folder.save_result(replace(folder.load_result(), num_samples=140, baseline={"top1": 0.07}))
    open_page(app, page, run=finished_run)
    assert "right on 7 % of 140 images, near chance" in app.warning[0].value
    go_back(app, run=finished_run, **{"for": "look"})
    assert "## The uncompressed model is right on 7 %" in texts(app)
    assert not app.warning


def seen(node: Node) -> Iterator[Element]:
    """Yield the elements in sight: nothing in closed popovers and expanders."""
    if isinstance(node, Block):
        if node.type not in ("expander", "popover"):
            for child in node.children.values():
                yield from seen(child)
    elif isinstance(node, Element):
        yield node


def folded(node: Node) -> int:
    """Return the number of popovers and expanders."""
    if not isinstance(node, Block):
        return 0
    return (node.type in ("expander", "popover")) + sum(map(folded, node.children.values()))


@pytest.mark.parametrize("goal", first_of(["smaller", "faster", "targets", "look"]))
def test_the_answer_has_few_words_and_controls(app: AppTest, finished_run, backend, goal: str) -> None:
    recommend(backend, finished_run)
    open_page(app, RESULTS, run=finished_run, **{"for": goal} if goal != "smaller" else {})
    assert not app.exception
    elements = list(seen(app.main))
    words = " ".join(str(getattr(each, "value", "") or getattr(each, "label", "")) for each in elements).split()
    controls = [each for each in elements if each.type in ("button", "download_button", "page_link", "button_group")]
    assert len(words) <= 150
    assert len(controls) + folded(app.main) <= 9
    assert len([each for each in elements if each.type == "vega_lite_chart"]) == 1


def test_a_file_beside_the_layers_that_were_asked_for_is_said_at_the_top_with_its_button(
    app: AppTest, finished_run, backend
) -> None:
    recommend(backend, finished_run)
    best = backend.store.folder(finished_run).candidates()[-1]
    open_page(app, RESULTS, run=finished_run, **{"for": "look"})
    shown = list(seen(app.main))
    assert any(str(getattr(each, "value", "")).startswith("## Most fragile: ") for each in shown)
    assert any(str(getattr(each, "value", "")).startswith(f"**{best.headline}**: ") for each in shown)
    assert "Get the file that runs (.onnx), 1.20 kB" in [each.label for each in shown if each.type == "download_button"]


def test_files_for_speed_are_drawn_by_their_times(app: AppTest, finished_run, backend) -> None:
    recommend(backend, finished_run)
    open_page(app, RESULTS, run=finished_run, **{"for": "faster", "show-files": "yes"})
    chart = app.get("vega_lite_chart")[0].proto.spec
    assert "Time of a call here" in chart
    assert "times_low" in chart
    assert "Size on disk" not in chart
    assert "Files are judged by time" in texts(app)


def test_a_recommendation_that_cannot_be_read_is_said_and_the_page_stays(app, finished_run, backend) -> None:
    recommend(backend, finished_run)
    (file,) = backend.store.folder(finished_run).path.glob("recommendation-*.json")
    file.write_text(file.read_text().replace("Recommendation", "Recommended", 1))
    open_page(app, RESULTS, run=finished_run)
    assert not app.exception
    assert app.error
    assert texts(app)


def test_the_target_file_is_the_button_for_targets(app: AppTest, finished_run, backend) -> None:
    recommend(backend, finished_run)
    open_page(app, RESULTS, run=finished_run, **{"for": "targets"})
    primary = [each.label for each in app.get("download_button") if each.proto.type == "primary"]
    assert primary == ["Get the targets (JSON)"]


def test_every_file_stands_in_one_table_with_its_button(app: AppTest, finished_run, backend) -> None:
    recommend(backend, finished_run)
    open_page(app, RESULTS, run=finished_run, **{"show-files": "yes"})
    assert not app.exception
    table = next(each.value for each in app.markdown if each.value.startswith("| Content |"))
    standings = [row.split(" | ")[1] for row in table.splitlines()[2:]]
    assert standings == ["recommended", "yes", *2 * ["not clearly smaller or faster"]]
    labels = [each.label for each in app.get("download_button") if each.label.startswith("Get the")]
    assert len(labels) == 4
    assert "on 1 core of the processor Some CPU, in turns with the original." in texts(app)
    assert "Everything to run it (zip)" in [each.label for each in app.get("download_button")]


def test_the_goal_chooses_among_measured_files_and_the_report_and_runs_follow(app, finished_run, backend) -> None:
    recommend(backend, finished_run)
    weights, *_ = backend.store.folder(finished_run).candidates()
    open_page(app, RESULTS, run=finished_run)
    app.segmented_control(key=f"for.{finished_run}").set_value("targets").run()
    assert not app.exception
    answer = decision((weights,), "targets", 0.01)
    headline = answer.headline
    assert f"## {headline}" in texts(app)
    assert "It is the strongest tested schedule that was measured to lose at most 1 point." in texts(app)
    open_page(app, "pages/runs.py")
    saved = headline.removeprefix("Targets that save ").partition(" of ")[0]
    answers = f"{answer.choice.answers_text} ({answer.choice.images} images)"
    assert app.dataframe[0].value["answers"][0] == f"Targets save {saved}: {answers}"
    assert answer.saved is None  # what the file of weights saves is nothing of the targets
    assert not app.dataframe[0].value["saved"].notna().any()
    open_page(app, "pages/present.py", run=finished_run)
    assert f"## {headline}" in texts(app)


def test_another_loss_chooses_among_measured_files_and_others_can_be_looked_for(
    app: AppTest, finished_run, service, backend
) -> None:
    recommend(backend, finished_run)
    open_page(app, RESULTS, run=finished_run)
    control = app.segmented_control(key=f"tolerated.{finished_run}")
    assert (control.label, control.options) == ("Tolerable loss (points)", ["0.2", "0.5", "1", "2", "5"])
    control.set_value(0.002).run()
    assert not app.exception
    assert "## Keep the original" in texts(app)
    assert "No file that is clearly smaller or faster was measured to lose at most 0.2 points." in texts(app)
    search = app.button(key=f"recommendation.start.{finished_run}")
    assert search.label.startswith("Search again within this loss (")
    search.click().run()
    task = RecommendationTask(run_id=finished_run, allowed_drop=0.002)
    assert service.work.progress(task).state is RunState.QUEUED


def test_before_a_run_was_searched_the_page_says_why_and_offers_a_first_search(
    app: AppTest, finished_run, backend, monkeypatch
) -> None:
    backend.store.folder(finished_run).save("first", Delivery(candidates=(a_candidate("int8", metric="top1"),)))
    open_page(app, RESULTS, run=finished_run)
    key, waits = f"recommendation.start.{finished_run}", "so it was not started by itself."
    assert app.button(key=key).label.startswith("Search within this loss (")
    assert waits not in texts(app)
    monkeypatch.setattr(backend.speeds, "follows", lambda *_: "file")  # as where the search is too long to follow
    assert waits in texts(app.run())
    recommend(backend, finished_run)
    app.segmented_control(key=f"tolerated.{finished_run}").set_value(0.002).run()
    assert app.button(key=key).label.startswith("Search again within this loss (")
    assert waits not in texts(app)


def test_the_schedule_page_begins_with_what_is_recommended_and_its_proof(app: AppTest, finished_run, backend) -> None:
    recommend(backend, finished_run)
    open_page(app, SCHEDULE, run=finished_run)
    assert app.slider(key=f"schedule.target.{finished_run}").value == 37
    assert "check_circle: **Measured**" in texts(app)
    assert "A starting point" not in texts(app)


@pytest.mark.parametrize("bits", [5.3, 11.0], ids=["as measured", "some layers in float"])
def test_bits_begin_with_what_is_recommended_too(app: AppTest, service: Service, backend: Backend, bits: float) -> None:
    spec = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(2, 4, 8)))
    run_id = finish(service, backend, spec)
    recommend(backend, run_id, target=bits, kind="bits")
    open_page(app, SCHEDULE, run=run_id)
    assert not app.exception
    assert app.slider(key=f"schedule.bits.{run_id}").value == bits


def test_where_nothing_pays_that_is_the_answer(app: AppTest, finished_run, backend) -> None:
    found = recommend(backend, finished_run)
    folder = backend.store.folder(finished_run)
    tried = tuple(replace(each, changes=(change("top1", 0.05, 0.01),)) for each in found.tried)
    nothing = replace(found, schedule=None, validation=None, tried=tried)
    task = RecommendationTask(run_id=finished_run)
    folder.save(task.key, nothing)
    useless = a_candidate("onnx", size=4001, share=1.0, lost=0.0, metric="top1", original=some_figures(0.01, 1.0, 4000))
    folder.save(task.key, Delivery(candidates=(useless,)))
    open_page(app, RESULTS, run=finished_run)
    assert "No measured file is clearly smaller or faster." in texts(app)
    assert not [each for each in app.get("download_button") if each.label.startswith("Get the")]


def test_it_is_offered_with_its_time_and_shows_how_far_it_is(app: AppTest, finished_run, service: Service) -> None:
    open_page(app, RESULTS, run=finished_run)
    task, key = RecommendationTask(run_id=finished_run), f"recommendation.start.{finished_run}"
    assert app.button(key=key).label.startswith("Find the smallest good model (")
    app.button(key=key).click().run()
    assert not app.exception
    assert service.work.progress(task).state is RunState.QUEUED
    assert "1st in the queue" in app.get("progress")[0].proto.text


def test_where_only_layers_were_asked_for_a_file_is_offered_quietly(app, service, backend) -> None:
    offered = {}
    for goal in ("look", "smaller"):
        run_id = finish(service, backend, RunSpec(goal=goal))
        open_page(app, RESULTS, run=run_id)
        button = app.button(key=f"recommendation.start.{run_id}")
        offered[goal] = button.label.partition(" (")[0], button.proto.type
    assert offered == {
        "look": ("Make a file from this run", "tertiary"),
        "smaller": ("Find the smallest good model", "primary"),
    }
