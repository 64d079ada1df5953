"""Verdicts of checks: on pairs made elsewhere, on weights in PyTorch, and on limits and causes by themselves."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from scipy.stats import beta

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidCheckpoint, InvalidInput, InvalidSpec
from senseapp.networks.sources.load import load_model
from senseapp.prove.check.check import check_files
from senseapp.prove.check.limits import loss_bound, loss_limit, time_limit
from senseapp.prove.check.sides import PROBABILITIES, SIGMOIDS, kind_of_outputs
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.records.check import CheckReport, CheckSpec
from senseapp.records.deployment import Median
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.tasks import task_named
from senseapp.views.report.document import build_check_page
from senseapp.views.words.check import operator_rows
from tests.cases import first_of
from tests.check_pairs import FAILS, PAIRS, SHORT, DetectorWorkshop, Pair, Workshop, check_pair
from tests.detector_exports import exported_detector, shape_pictures

CLASSIFICATION = task_named("classification")
BY_NAME = {pair.name: pair for pair in PAIRS}
SMALL = ModelSpec(library="timm", name="mobilenetv3_small_050", num_classes=5)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> DetectorWorkshop:
    return DetectorWorkshop(tmp_path_factory.mktemp("detector pairs"))


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of(SHORT, 3))
def test_the_verdict_on_a_pair_made_elsewhere_is_right(shop: Workshop, name: str) -> None:
    outcome = check_pair(BY_NAME[name], shop, samples=160)
    assert not outcome.wrong, outcome.said


@pytest.mark.wide
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_verdict_on_every_pair_is_right(shop: Workshop, detector: DetectorWorkshop, pair: Pair) -> None:
    outcome = check_pair(pair, detector if pair.detects else shop)
    assert not outcome.wrong, outcome.said


def test_names_of_classes_that_only_the_candidate_holds_are_said(shop: Workshop, tmp_path: Path) -> None:
    made = next(pair for pair in PAIRS if pair.name == "classes reversed").make(shop)
    names = [f"digit {place}" for place in range(10)]
    onnx.helper.set_model_props(made, {"names": repr(dict(enumerate(names)))})
    onnx.save(made, tmp_path / "named.onnx")
    found = check_files(spec_of(shop.reference, tmp_path / "named.onnx", data=digits(), num_samples=40)).answers
    assert found is not None
    assert found.pictures
    assert {picture.before for picture in found.pictures} <= set(names)


def test_a_report_says_where_the_time_goes_in_both_files(shop: Workshop) -> None:
    outcome = check_pair(BY_NAME["static int8, QDQ, per channel"], shop, samples=40)
    assert outcome.report is not None
    found = {each.kind: each for each in outcome.report.operators}
    assert found["Conv"].original_calls == found["Conv"].calls > 0
    assert min(found["Conv"].original_seconds, found["Conv"].seconds) > 0
    assert found["QuantizeLinear"].is_border
    assert found["QuantizeLinear"].original_calls == 0 < found["QuantizeLinear"].calls
    rows = operator_rows(outcome.report.operators)
    assert len(rows) == len(found)
    assert any(row[0] == "QuantizeLinear (converts)" for row in rows)
    assert "<h2>Where the time goes</h2>" in build_check_page(outcome.report)
    assert loads(dumps(outcome.report), CheckReport) == outcome.report


def spec_of(reference: Path | ModelSpec, candidate: Path | ModelSpec, **more: object) -> CheckSpec:
    sides = [
        each if isinstance(each, ModelSpec) else ModelSpec(library="onnx", checkpoint=str(each), task="classification")
        for each in (reference, candidate)
    ]
    return replace(CheckSpec(reference=sides[0], candidate=sides[1]), **more)  # type: ignore[arg-type]


def test_weights_of_a_demo_are_checked_against_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("senseapp.prove.check.check._Comparison._as_file", lambda *_: None)  # exports take seconds
    demo = ModelSpec()
    weights = {name: tensor.clone() for name, tensor in load_model(demo).module.state_dict().items()}
    weights["fc.weight"].zero_()
    safetensors.torch.save_file(weights, tmp_path / "made.safetensors")
    candidate = ModelSpec(library="auto", checkpoint=str(tmp_path / "made.safetensors"), task="classification")
    spec = spec_of(demo, candidate, num_samples=40, own_images=30, candidate_title="Digits: PyTorch weights")
    report = check_files(spec)
    assert report.headline.startswith("Fails: Loss of right answers:")
    assert "used 30 of these 40 images, so it may lose more on new ones." in report.headline
    assert report.candidate.name == "Digits: PyTorch weights"
    assert "The size of demo is that of its weights in memory." in report.notes
    del weights["fc.weight"]
    safetensors.torch.save_file(weights, tmp_path / "made.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"The compressed file cannot be loaded: .*fc\.weight"):
        check_files(spec)


def test_of_the_images_of_a_run_those_that_it_held_out_are_taken(shop: Workshop) -> None:
    report = check_files(spec_of(shop.reference, shop.reference, own_images=628))
    assert report.images == 269
    assert "made with" not in report.headline


def test_the_size_of_weights_beside_a_file_is_that_of_the_same_kind_of_file(shop: Workshop) -> None:
    report = check_files(spec_of(ModelSpec(), shop.reference, num_samples=20))
    assert report.reference.file_bytes == pytest.approx(948e3, rel=0.02)  # 892 kB in memory
    assert "Size and time of demo are those of an ONNX file that was made of its weights." in report.notes


def digits(**more: object) -> DataSpec:
    return replace(DataSpec(kind="demo", mean=(0.304,), std=(0.323,)), **more)  # type: ignore[arg-type]


def test_too_few_images_show_nothing_and_the_report_says_how_many_would(shop: Workshop) -> None:
    few = {"num_samples": 20, "max_drop": 0.01, "metric": "agreement"}
    report = check_files(spec_of(shop.reference, shop.reference, data=digits(labels=""), **few))
    loss = next(each for each in report.limits if each.name == "loss")
    assert (loss.holds, loss.undecided, report.holds) == (False, True, False)
    assert "About 299 images" in loss.sentence
    assert report.headline.startswith("Not shown to hold")
    assert report.bound is not None
    assert report.bound.upper == pytest.approx(float(beta.ppf(0.95, 1, 20)))


def test_a_reference_that_is_no_file_or_gives_no_numbers_is_bad_input(shop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"gone\.onnx cannot be checked: it is not there"):
        check_files(spec_of(tmp_path / "gone.onnx", shop.reference, data=digits()))
    broken = BY_NAME["not a number in one weight"].make(shop)
    assert isinstance(broken, Path)
    with pytest.raises(InvalidInput, match="The original itself returns numbers that are not finite on 24 of 24"):
        check_files(spec_of(broken, shop.reference, data=digits(), num_samples=24))


def test_a_metric_that_cannot_be_measured_is_refused_with_those_that_can(shop: Workshop) -> None:
    with pytest.raises(InvalidSpec, match=r"The metric miou cannot be measured .*top1"):
        check_files(spec_of(shop.reference, shop.reference, data=digits(), num_samples=20, metric="miou"))


def test_uploaded_weights_in_another_file_are_not_looked_for(shop: Workshop, tmp_path: Path) -> None:
    whole = tmp_path / "beside.onnx"
    onnx.save(onnx.load(shop.reference), whole, save_as_external_data=True, size_threshold=0, location="weights.bin")
    spec = spec_of(shop.reference, whole, data=digits(), num_samples=160, max_drop=0.03)
    with pytest.raises(InvalidCheckpoint, match="are in another file"):
        check_files(spec)
    assert check_files(spec, own_disk=True).holds


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[dict[str, torch.Tensor]], None]], Path]:
    """Write weights of a small network, changed."""
    weights = load_model(SMALL).module.state_dict()
    folder = tmp_path_factory.mktemp("weights")

    def write(change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
        changed = {name: each.clone() for name, each in weights.items()}
        change(changed)
        path = folder / f"{len(list(folder.iterdir()))}.safetensors"
        safetensors.torch.save_file(changed, path)
        return path

    return write


@pytest.mark.wide
@pytest.mark.slow
def test_weights_of_one_architecture_are_compared_layer_by_layer(
    checkpoint: Callable[[Callable[[dict[str, torch.Tensor]], None]], Path],
) -> None:
    def damage(weights: dict[str, torch.Tensor]) -> None:
        weights["blocks.2.0.conv_dw.weight"].mul_(-3)

    sides = [replace(SMALL, checkpoint=str(path)) for path in (checkpoint(lambda _: None), checkpoint(damage))]
    report = check_files(
        spec_of(sides[0], replace(sides[1], library="auto", name=""), data=DataSpec(kind="random"), num_samples=8,
                max_drop=1e-6, metric="kl")
    )  # fmt: skip
    assert not report.holds
    assert report.divergence is not None
    assert report.divergence.matched_by == "layer"
    assert report.divergence.first is not None
    assert report.divergence.first.name == "blocks.2.0.conv_dw"
    assert report.divergence.first.difference == pytest.approx(4.0, rel=0.2)
    assert sum("timed in PyTorch" in note for note in report.notes) == 2
    assert report.time_ratio is not None


@pytest.mark.wide
def test_weights_and_a_file_are_compared_by_the_names_of_layers(shop: Workshop) -> None:
    made = BY_NAME["noise in one layer"].make(shop)
    assert isinstance(made, Path)
    report = check_files(spec_of(ModelSpec(), made, data=DataSpec(kind="demo"), num_samples=100, max_drop=0.03))
    assert not report.holds
    assert report.divergence is not None
    assert report.divergence.first is not None
    assert report.divergence.first.name == "layer3.0.conv1"


def test_weights_beside_an_onnx_reference_need_an_architecture(shop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    candidate = ModelSpec(library="auto", checkpoint=str(path))
    with pytest.raises(InvalidSpec, match="which names no architecture"):
        check_files(spec_of(shop.reference, candidate, data=digits(), num_samples=20))


# ---- outputs that are no scores


def shares(count: int = 6, classes: int = 4) -> torch.Tensor:
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(0)).softmax(dim=1)


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [
        (shares(), PROBABILITIES),
        (shares().half(), PROBABILITIES),
        (shares()[:, None, None, :], PROBABILITIES),
        (shares()[:, :, None, None], PROBABILITIES),
        (torch.tensor([0.2, 0.7])[:, None, None, None], SIGMOIDS),
        (shares() * 5, None),
        (shares() - 0.3, None),
        (torch.full((3, 4), 0.9), None),
        (torch.tensor([[0.2], [0.7]]), SIGMOIDS),
        (torch.full((2, 4), math.nan), None),
    ],
)
def test_probabilities_are_told_from_scores(outputs: torch.Tensor, kind: object) -> None:
    assert kind_of_outputs(CLASSIFICATION, outputs) is kind


def test_rounded_probabilities_are_such_where_the_reference_has_them() -> None:
    rounded = (shares() * 4).round() / 4
    assert kind_of_outputs(CLASSIFICATION, rounded * 0.9, like=PROBABILITIES) is PROBABILITIES
    assert kind_of_outputs(CLASSIFICATION, rounded * 0.9) is None


def test_scores_of_probabilities_keep_their_differences() -> None:
    scores = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    found = PROBABILITIES.scores(scores.softmax(dim=1))
    assert torch.allclose(found - found[:, :1], (scores - scores[:, :1]).double(), atol=1e-5)
    assert torch.allclose(SIGMOIDS.scores(scores.sigmoid()).float(), scores, atol=1e-4)


# ---- limits


class _Answers:
    """A network that gives prepared scores, in order."""

    fixed_batch = None

    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores

    def run(self, batch: torch.Tensor) -> torch.Tensor:
        return self.scores[batch.flatten().long()]


def judged(before: list[int], after: list[int], labels: list[int] | None) -> Judgement:
    places = torch.arange(len(before)).view(-1, 1, 1, 1).float()
    images = JudgingImages(
        count=len(before),
        batches=lambda low, high: [places[low:high]],
        labels=None if labels is None else torch.tensor(labels),
    )
    one_hot = [torch.eye(3)[torch.tensor(answers)] for answers in (before, after)]
    judge = Judge(CLASSIFICATION, images, _Answers(one_hot[0]), num_outputs=3)  # type: ignore[arg-type]
    return judge.judged(_Answers(one_hot[1]))  # type: ignore[arg-type]


def test_the_bound_of_changed_answers_is_clopper_and_pearsons() -> None:
    found = loss_bound(judged([0] * 200, [1] * 3 + [0] * 197, None), "agreement", 0.05)
    assert (found.delta, found.guaranteed) == (pytest.approx(0.015), True)
    assert found.upper == pytest.approx(float(beta.ppf(0.95, 4, 197)))
    assert loss_limit(found).holds
    assert "Results bounds all files" not in loss_limit(found).sentence
    assert "Results bounds all files" in loss_limit(found, is_of_run=True).sentence
    none = [0] * 269  # 1.1075 %: what is said is never below the bound
    assert (
        "certainty at most 1.2 points: these"
        in loss_limit(loss_bound(judged(none, none, none), "top1", 0.011)).sentence
    )


def test_the_bound_of_accuracy_counts_what_gets_better() -> None:
    labels = [0] * 200
    after = [1] * 6 + [0] * 194
    alone = loss_bound(judged(labels, after, labels), "top1", 0.01)
    assert alone.upper == pytest.approx(float(beta.ppf(0.95, 7, 194)))
    both = loss_bound(judged(([0] * 194 + [1] * 6), after, labels), "top1", 0.01)
    assert both.delta == pytest.approx(0)
    assert both.delta < both.upper < alone.upper
    limit = loss_limit(alone)
    assert (limit.holds, limit.undecided) == (False, False)
    assert "the limit is 1 point" in limit.sentence


@pytest.mark.parametrize(
    ("low", "high", "holds", "undecided"), [(0.6, 0.9, True, False), (1.1, 1.3, False, False), (0.9, 1.1, False, True)]
)
def test_a_time_is_judged_by_its_interval(low: float, high: float, holds: bool, undecided: bool) -> None:
    limit = time_limit(Median(value=(low + high) / 2, low=low, high=high), 1.0)
    assert (limit.holds, limit.undecided) == (holds, undecided)


def test_unlike_networks_are_not_explained_by_an_order_of_classes(shop: Workshop) -> None:
    outcome = check_pair(BY_NAME["untrained weights"], shop, samples=100)
    assert outcome.verdict == FAILS
    assert "another order" not in outcome.said
    assert "preprocessing" not in outcome.said


def test_pixels_are_given_to_files_that_take_them(shop: Workshop) -> None:
    outcome = check_pair(BY_NAME["pixels from 0 to 255, normalised inside"], shop, samples=120)
    assert not outcome.wrong
    assert outcome.report is not None
    assert outcome.report.bound is not None
    assert outcome.report.bound.delta == 0
    assert "gets pixels from 0 to 255" in " ".join(outcome.report.candidate.notes)


@pytest.mark.wide
def test_a_pair_of_classes_and_boxes_is_compared_by_both(tmp_path: Path) -> None:
    """Boxes that are all moved lose every object, though no class score changes."""
    data = shape_pictures(tmp_path / "data", 10)
    reference = exported_detector(tmp_path / "pair.onnx", "pair")
    spec = DataSpec(kind="folder", path=str(data), mean=(0.0,) * 3, std=(1.0,) * 3, preparation="auto")

    def changed(name: str, amount: float) -> CheckReport:
        model = onnx.load(reference)
        next(node for node in model.graph.node if "boxes" in node.output).output[0] = "inner"
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(amount), "amount"))
        model.graph.node.append(onnx.helper.make_node("Add", ["inner", "amount"], ["boxes"]))
        onnx.save(model, tmp_path / name)
        sides = [
            ModelSpec(library="onnx", checkpoint=str(each), task="detection") for each in (reference, tmp_path / name)
        ]
        return check_files(CheckSpec(reference=sides[0], candidate=sides[1], data=spec, metric="map50", max_drop=0.01))

    same, moved = changed("same.onnx", 0.0), changed("moved.onnx", 0.4)
    assert same.changes[0].delta == 0
    assert not moved.holds
    found = {change.metric: change for change in moved.changes}["map50"]
    assert (found.baseline > 0.2, found.value < 0.05) == (True, True)
