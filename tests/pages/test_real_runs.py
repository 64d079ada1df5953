"""Runs of each task and source, with the real engine: measured, estimated, scheduled, proven, opened on each page."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import InvalidSpec, UnknownModel
from senseapp.descriptions import SOURCES, BudgetKind, CompressionConfig
from senseapp.metrics import METRICS
from senseapp.networks.sources.catalogue import parse_model
from senseapp.prove.prove import Proof, validate
from senseapp.records.measurement import RunResult, Status
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.run_tasks import LayerAnswers
from senseapp.server.service import Service
from senseapp.solve.methods import make_schedule
from tests import shapes_detector, toy_rectangles, toy_source
from tests.cases import seldom
from tests.onnx_files import write_export
from tests.pages.conftest import finish, open_page, wait_for_card
from tests.pictures import write_folder
from tests.small_models import small_network
from tests.value_networks import write_network, write_pictures

REAL_ENGINE = True
NUM_PICTURES, NUM_MEASURED = 116, 16


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    for source in (shapes_detector.SOURCE, toy_rectangles.SOURCE, toy_source.TOY):
        SOURCES.register(source)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network with its images, and what must hold of its run.

    Attributes:
        inputs: return both, given a folder for files.
        metrics: of the proof, measured on all images that the run was not.
        check: looks at what is special.
    """

    inputs: Callable[[Path], tuple[ModelSpec, DataSpec]]
    compression: CompressionConfig = field(default_factory=SparsityConfig)
    levels: tuple[float, ...] = (0.5, 0.9)
    kind: BudgetKind = "params"
    target: float = 0.5
    least_agreement: float = -1.0
    metrics: tuple[str, ...] = ()
    check: Callable[[RunResult, Proof], None] = lambda _result, _proof: None


def a_detector(result: RunResult, proof: Proof) -> None:
    assert (result.has_labels, result.metric, result.method) == (True, "detection_kl", "replay")
    assert f"{NUM_PICTURES} pictures with boxes." in result.notes
    proven = {change.metric: change for change in proof.result.changes}
    assert proven["map"].baseline > 0.3
    assert METRICS["objects_f1"].kept_text(proven["objects_f1"]).endswith(")")
    assert proof.changed is not None
    assert proof.changed.sentence.startswith("Of ")
    assert {title for title, _ in proof.changed.pictures[0].drawn} == {"original", "compressed", "label"}


def a_segmenter(result: RunResult, proof: Proof) -> None:
    found = {change.metric for item in result.measurements for change in item.changes}
    assert found == {"pixel_accuracy", "pixel_kl", "pixel_agreement"}
    assert proof.changed is not None
    assert proof.changed.sentence.startswith("Of 100 pixels, ")
    assert [title for title, _ in proof.changed.pictures[0].drawn] == ["original", "compressed", "label"]


def values(result: RunResult, proof: Proof) -> None:
    assert not result.has_labels
    assert result.profile.num_classes == 2  # outputs
    assert proof.result.schedule.metric == "squared_error"
    assert proof.changed is not None
    assert proof.changed.pictures[0].caption.startswith("squared error ")
    assert {change.metric for change in proof.result.changes} == {"fidelity", "squared_error", "cosine_distance"}


def a_file(result: RunResult, _proof: Proof) -> None:
    assert result.profile.title == "net.onnx"
    assert {layer.name for layer in result.profile.layers} >= {"stem", "blocks.0.conv1", "head"}


def rectangles(folder: Path) -> tuple[ModelSpec, DataSpec]:
    pictures = write_folder(folder / "set", toy_rectangles.picture_files(NUM_PICTURES))
    model = ModelSpec(library=toy_rectangles.SOURCE.name, name="rectangles", task="segmentation")
    return model, DataSpec(kind="folder", path=str(pictures))


def shapes(folder: Path) -> tuple[ModelSpec, DataSpec]:
    pictures = write_folder(folder / "set", shapes_detector.picture_files(NUM_PICTURES))
    return ModelSpec(library="shapes", name="ssd", task="detection"), DataSpec(kind="folder", path=str(pictures))


def two_outputs(folder: Path) -> tuple[ModelSpec, DataSpec]:
    network = write_network(folder / "net.onnx", "boxes and prototypes")
    pictures = DataSpec(kind="folder", path=str(write_pictures(folder / "set", NUM_PICTURES)))
    return ModelSpec(library="onnx", checkpoint=str(network), task="values"), pictures


def an_export(folder: Path) -> tuple[ModelSpec, DataSpec]:
    file = write_export(folder / "net.onnx", small_network(seed=0))
    return ModelSpec(library="onnx", checkpoint=str(file), task="classification"), DataSpec(kind="random")


FILE = {"inputs": an_export, "check": a_file}
CASES = {
    "segmentation": Case(
        inputs=rectangles,
        least_agreement=0.4,  # Spearman of three layers
        metrics=("miou",),
        check=a_segmenter,
    ),
    "values": Case(inputs=two_outputs, target=0.3, least_agreement=0.9, metrics=("fidelity",), check=values),
    "ONNX file, bits": Case(compression=QuantizationConfig(), levels=(8.0, 4.0), kind="bits", target=6.0, **FILE),
    "ONNX file, zeros": Case(levels=(0.3, 0.6), target=0.2, **FILE),
    "ONNX file, channels": Case(compression=PruningConfig(), levels=(0.3, 0.6), target=0.2, **FILE),
    "source of another package": Case(inputs=lambda _: (parse_model("toys/second"), DataSpec(kind="random"))),
    "detection": Case(
        inputs=shapes,
        levels=(0.5, 0.7),
        least_agreement=0.8,  # of nine layers
        metrics=("map", "map50", "objects_f1", "agreement_map", "agreement_map50"),
        check=a_detector,
    ),
}
OFTEN = ("segmentation", "ONNX file, bits")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in OFTEN else seldom(name) for name in CASES])
def test_it_is_measured_scheduled_proven_and_shown(
    app: AppTest, service: Service, backend: Backend, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    model, data = case.inputs(tmp_path)
    settings = SensitivitySpec(compression=case.compression, levels=case.levels, num_samples=NUM_MEASURED, device="cpu")
    run_id = finish(service, backend, RunSpec(model=model, data=data, sensitivity=settings))
    result = service.result(run_id)
    assert any(item.status is Status.MEASURED for item in result.measurements)
    assert not any(item.status is Status.FAILED for item in result.measurements)
    assert min(result.agreement.values(), default=1.0) > case.least_agreement
    schedule = make_schedule(result, budget=ResourceBudget(kind=case.kind, target=case.target))
    proof = validate(result, schedule, repair=True, data_roots=(tmp_path,))
    proven = {change.metric: change for change in proof.result.changes}
    assert proven
    for metric in case.metrics:
        assert proven[metric].num_samples == NUM_PICTURES - NUM_MEASURED
        assert proven[metric].ci_low <= proven[metric].delta <= proven[metric].ci_high
    case.check(result, proof)
    measured = next(item for item in result.measurements if item.status is Status.MEASURED)
    answers = LayerAnswers(run_id=run_id, layer=measured.layer, level=measured.level)
    service.work.start(answers)
    assert backend.runner.run_next()
    changed = service.work.outcome(answers)
    assert changed is not None
    assert changed.subject.startswith(f"{measured.layer} at ")
    if model.task == "classification":
        assert changed.num_changed == round(measured.change("agreement").delta * result.num_samples)
    for page in ("results", "targets", "compare", "runs", "present"):
        open_page(app, f"pages/{page}.py", run=run_id)
        assert not app.exception, page


def test_a_name_that_a_source_does_not_have_lists_those_that_it_has() -> None:
    with pytest.raises(InvalidSpec, match="The toys networks are toys/first, toys/second, got toys/third"):
        parse_model("toys/third")
    with pytest.raises(UnknownModel, match=r"A model is written demo, .*toys, timm/NAME or torchvision/NAME"):
        parse_model("games/third")


def test_analyze_offers_the_networks_of_a_source(app: AppTest) -> None:
    app.run()
    app.segmented_control(key="analyze.model.source").set_value(toy_source.TOY.label).run()
    app.selectbox(key="analyze.model.toys").set_value("second").run()
    wait_for_card(app)
    assert not app.exception
