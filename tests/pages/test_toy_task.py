"""A task that is added by one file and one registry line is analysed, scheduled, proven and shown."""

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidDataset, InvalidSpec, UnsupportedModel
from senseapp.measure.histograms import histogram_of
from senseapp.metrics import METRICS
from senseapp.prove.prove import validate
from senseapp.records.measurement import Status
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import DataSpec, HistogramObjective, HistogramSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.solve.methods import make_schedule
from senseapp.tasks import TASKS
from tests.cases import first_of
from tests.pages.conftest import open_layers, open_page, wait_for_card
from tests.pictures import png
from tests.toy_task import ERROR, REGRESSION, SHIFT

REAL_ENGINE = True

NUM_IMAGES = 24


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    TASKS.register(REGRESSION)


def pictures(folder: Path) -> DataSpec:
    """Write pictures in one folder beside a table of numbers."""
    place = folder / "images"
    place.mkdir()
    for number in range(NUM_IMAGES):
        (place / f"{number}.png").write_bytes(png(number))
    lines = [f"{number}.png,{number / 10}" for number in range(NUM_IMAGES)]
    (place / "labels.csv").write_text("\n".join(["file,label", *lines]))
    return DataSpec(kind="folder", path=str(place))


@pytest.fixture
def images(tmp_path: Path) -> DataSpec:
    return pictures(tmp_path)


def a_network(num_classes: int = 1) -> ModelSpec:
    return ModelSpec(library="timm", name="test_vit", num_classes=num_classes, task="regression")


def runs_to_measure(folder: Path) -> dict[str, RunSpec]:
    data = pictures(folder)
    return {
        mode: RunSpec(
            model=a_network(),
            data=data,
            sensitivity=SensitivitySpec(levels=(0.5, 0.9), num_samples=16, mode=mode, device="cpu"),  # type: ignore[arg-type]
        )
        for mode in ("exact", "quick")
    }


@pytest.mark.slow
def test_it_is_ranked_scheduled_and_proven_in_its_own_metrics(measured: dict[str, str], service: Service) -> None:
    result = service.result(measured["exact"])
    assert result.spec.model.task == "regression"
    assert result.metric == ERROR.name
    assert set(result.baseline) == {ERROR.name, SHIFT.name, "sqnr"}
    assert result.has_labels
    assert all(item.status is Status.MEASURED for item in result.measurements)
    ranked = result.ranked(0.9, SHIFT.name)
    assert ranked[0][1].delta > ranked[-1][1].delta > 0
    assert set(result.agreement) == {"0.5", "0.9"}
    assert min(result.agreement.values()) > 0.8  # what the quick scan estimates is what is measured
    schedule = make_schedule(result, budget=ResourceBudget(kind="params", target=0.5))
    assert schedule.achieved["params"] >= 0.5 - 1e-9
    assert schedule.metric == SHIFT.name
    proof = validate(result, schedule, repair=True).result
    assert {change.metric for change in proof.changes} == {ERROR.name, SHIFT.name, "sqnr"}


@pytest.mark.parametrize("objective", first_of(["loss", "output", "mean"]))
def test_a_histogram_follows_its_number_and_its_loss_back(
    measured: dict[str, str], service: Service, objective: HistogramObjective
) -> None:
    run_id = measured["quick"]
    spec = HistogramSpec(layer=service.result(run_id).profile.layers[0].name, objective=objective, num_images=4)
    assert sum(histogram_of(service.result(run_id), spec).gradient_magnitudes) > 0


def test_estimates_alone_come_in_its_divergence_and_its_error(measured: dict[str, str], service: Service) -> None:
    result = service.result(measured["quick"])
    assert not result.measurements
    assert {change.metric for item in result.estimates for change in item.changes} == {ERROR.name, SHIFT.name}
    assert len(result.estimates) == 2 * len(result.profile.layers)
    assert result.baseline[ERROR.name] > 0


@pytest.mark.slow
def test_the_app_shows_its_results(app: AppTest, measured: dict[str, str], service: Service) -> None:
    run_id = measured["exact"]
    open_layers(app, run_id)
    assert not app.exception
    labels = [ERROR.label, SHIFT.label]  # the noise of outputs is for experts
    assert sorted(app.selectbox(key=f"results.metric.{run_id}").options) == sorted(labels)
    drawn = [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]
    assert SHIFT.change_title in json.dumps(drawn[0])  # the divergence, of which estimates have values
    open_page(app, "pages/targets.py", run=run_id)
    assert not app.exception


def test_analyze_offers_it_and_its_metrics(app: AppTest, service: Service) -> None:
    app.run()
    app.segmented_control(key="analyze.model.source").set_value("Library").run()
    app.text_input(key="analyze.model.library.search").set_value("test_vit").run()
    app.radio(key="analyze.model.library.entry").set_value("timm/test_vit").run()
    app.selectbox(key="analyze.model.task").set_value("regression").run()
    wait_for_card(app)
    assert not app.exception
    offered = app.selectbox(key="analyze.metric").options
    assert {ERROR.label, SHIFT.label} < set(offered)
    assert METRICS["top1"].label not in offered


def test_pictures_are_surveyed_and_previewed_in_its_words(images: DataSpec, backend: Backend) -> None:
    service = Service(backend)
    survey = service.inputs.survey_images(images, a_network())
    assert (survey.layout, survey.num_images, survey.proposal) == ("table", NUM_IMAGES, None)
    report = service.inputs.preview(RunSpec(model=a_network(), data=images))
    assert {float(picture.label) for picture in report.pictures} <= {number / 10 for number in range(NUM_IMAGES)}
    assert all(float(picture.prediction) < 100 for picture in report.pictures)
    assert report.num_scored == NUM_IMAGES
    assert report.score == pytest.approx(1.2, abs=1)


def test_what_does_not_fit_the_task_is_refused(images: DataSpec, backend: Backend, tmp_path: Path) -> None:
    service = Service(backend)
    with pytest.raises(UnsupportedModel, match=r"one number per image.*tensor of shape \(1, 3\)"):
        service.inputs.model_card(a_network(3))
    assert service.inputs.model_card(ModelSpec(library="timm", name="test_vit", num_classes=1)).num_classes == 2
    (tmp_path / "images" / "labels.csv").write_text("0.png,cat")
    with pytest.raises(InvalidDataset, match="Labels must be numbers"):
        service.inputs.preview(RunSpec(model=a_network(), data=images))


def test_a_run_says_its_task_or_takes_that_of_its_source() -> None:
    assert loads(dumps(RunSpec(model=a_network())), RunSpec).model.task == "regression"
    assert ModelSpec().task == "classification"
    with pytest.raises(
        InvalidSpec, match=r"The task must be one of classification, multilabel, .*regression, got 'poetry'"
    ):
        ModelSpec(task="poetry")
