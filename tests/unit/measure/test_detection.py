"""Torchvision's detectors: measured as by a plain loop, estimated, and read as torchvision reads them."""

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from senseapp.core.errors import InvalidSpec
from senseapp.data.images import TensorImages
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.metrics.detection import DIVERGENCE, MAP, OBJECTS
from senseapp.metrics.detection.matching import detections_of
from senseapp.metrics.detection.rows import LEAST_SCORE, SAME_BOX, RowKind, blocks
from senseapp.metrics.predictions import Columns, num_bytes, precise
from senseapp.networks.sources.detectors import opened_detector
from senseapp.networks.sources.torchvision_networks import torchvision_names
from senseapp.records.resolution import spearman
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import TASKS
from tests import shapes_detector
from tests.plain_loop import sampled, sparse_copy

DETECTION = TASKS["detection"]
SPARSITY = 0.5
SMALLEST = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 96}
USUAL_SIDE = 64
WITHOUT_MARK = ("ssdlite320_mobilenet_v3_large",)


def untrained(name: str) -> nn.Module:
    """Return a detector with random weights, whose norms are set to its activations: they would fade out."""
    torch.manual_seed(0)
    few = {"rpn_post_nms_top_n_test": 40} if "rcnn" in name else {}
    module = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=5, **few)
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.momentum = 1.0
    images = torch.randn(2, 3, *side_of(name), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        module.train()
        maps = module.backbone(images)
        if hasattr(module, "head"):
            module.head(list(maps.values()))
    return opened_detector(module.eval())


def side_of(name: str) -> tuple[int, int]:
    side = SMALLEST.get(name, USUAL_SIDE)
    return side, side


def row_divergence(old: np.ndarray, new: np.ndarray, kind: RowKind) -> float:
    """Return the divergence of one image's rows of one kind, row by row."""
    if kind is RowKind.PROPOSAL:
        new = np.stack([max(new, key=lambda each: overlap(one[:4], each[:4])) for one in old])
    return sum(
        classes_differ(one, other, kind) + score(one, kind) * (1 - overlap(one[:4], other[:4]))
        for one, other in zip(old, new, strict=True)
    )


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [max(0.0, each[2] - each[0]) * max(0.0, each[3] - each[1]) for each in (one, other)]
    return (width * height + 1e-9) / ((sum(areas) - width * height) + 1e-9)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def softmax(values: np.ndarray) -> np.ndarray:
    found = np.exp(values - values.max())
    return found / found.sum()


def score(row: np.ndarray, kind: RowKind) -> float:
    if kind in (RowKind.SOFTMAX, RowKind.PROPOSAL):
        return float(softmax(row[6:])[1:].max())
    if kind is RowKind.ANCHOR:
        return float(sigmoid(row[5]))
    product = sigmoid(row[6:]).max()
    return float(product if kind is RowKind.SIGMOID else np.sqrt(product * sigmoid(row[5])))


def classes_differ(one: np.ndarray, other: np.ndarray, kind: RowKind) -> float:
    if kind in (RowKind.SOFTMAX, RowKind.PROPOSAL):
        p, q = softmax(one[6:]), softmax(other[6:])
        return float((p * np.log(p / q)).sum())
    used = slice(5, 6) if kind is RowKind.ANCHOR else slice(5, None)
    p, q = sigmoid(one[used]), sigmoid(other[used])
    return float((p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).sum())


def divergence_of(before: Columns, after: Columns) -> float:
    """Return the mean over images of the divergence of their rows."""
    old, new = (precise(each).parts["rows"] for each in (before, after))  # type: ignore[union-attr]
    totals = [
        sum(row_divergence(one[place].numpy(), other[place].numpy(), kind) for kind, place in blocks(old))
        for one, other in zip(old, new, strict=True)
    ]
    return float(np.mean(totals))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name in WITHOUT_MARK else pytest.param(name, marks=[pytest.mark.architectures, pytest.mark.wide])
        for name in torchvision_names("detection")
    ],
)
def test_layers_are_measured_as_by_a_plain_loop(name: str) -> None:
    network = untrained(name)
    images = torch.randn(2, 3, *side_of(name), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        before = DETECTION.predictions(network(images))
    layers = [each for each, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    chosen = sampled([each for each in layers if "mask_" not in each and "keypoint_" not in each], 4)
    spec = SensitivitySpec(levels=(SPARSITY,), num_samples=2, batch_size=2, device="cpu", layers=chosen)
    sweep = Sweep.open(network, TensorImages(images), spec, task=DETECTION)
    found = {item.layer: item for item in sweep.measure()}
    assert found.keys() == set(chosen)
    assert sweep.context.replay_obstacle is None
    plain = sweep.context.model
    assert torch.equal(sweep.baseline.outputs.parts["rows"], sweep.context.outputs(0, 2).parts["rows"])  # type: ignore[union-attr]
    for layer, item in found.items():
        changed = sparse_copy(plain, layer, item.achieved_level)
        with torch.inference_mode():
            after = DETECTION.predictions(changed(sweep.context.batches(0, 2)[0]))
        exact = DIVERGENCE.change(DIVERGENCE.moments(sweep.baseline.outputs, after, None)).delta
        assert item.change(DIVERGENCE.name).delta == exact  # type: ignore[union-attr]  # bit for bit
        if name in WITHOUT_MARK:
            assert exact == pytest.approx(divergence_of(before, after), rel=1e-3, abs=1e-6)  # type: ignore[arg-type]


def test_estimates_of_a_trained_detector_rank_and_size_what_is_measured() -> None:
    images, _ = shapes_detector.inputs(range(48))
    spec = SensitivitySpec(levels=(0.5, 0.7), num_samples=48, device="cpu")
    sweep = Sweep.open(opened_detector(shapes_detector.trained()), TensorImages(images), spec, task=DETECTION)
    estimated = {item.key: item.change(DIVERGENCE.name).delta for item in quick_scan(sweep)}  # type: ignore[union-attr]
    measured = {item.key: item.change(DIVERGENCE.name).delta for item in sweep.measure()}  # type: ignore[union-attr]
    assert estimated.keys() == measured.keys()
    pairs = [(estimated[key], measured[key]) for key in measured]
    assert spearman(*zip(*pairs, strict=True)) > 0.93
    assert all(1 / 3 < one / other < 3 for one, other in pairs)


@pytest.mark.parametrize("form", ["ssd", "fcos"])
def test_detections_are_those_of_torchvision(form: str) -> None:
    if form == "ssd":
        closed = shapes_detector.trained()
        images, _ = shapes_detector.inputs(range(4))
        pictures = images * 0.25 + 0.5
    else:
        torch.manual_seed(0)
        closed = torchvision.models.get_model(
            "fcos_resnet50_fpn", weights=None, weights_backbone=None, num_classes=3, **{"min_size": 64, "max_size": 64}
        )
        closed.eval()
        pictures = torch.rand(2, 3, 64, 64)
        mean, std = (
            torch.tensor(each)[:, None, None] for each in (closed.transform.image_mean, closed.transform.image_std)
        )
        images = (pictures - mean) / std
    closed.score_thresh, closed.nms_thresh, closed.detections_per_img = LEAST_SCORE, SAME_BOX, 100
    closed.topk_candidates = 1000
    with torch.inference_mode():
        expected = closed(list(pictures))
        candidates = DETECTION.predictions(opened_detector(closed)(images)).parts["candidates"]  # type: ignore[union-attr]
    for wanted, each in zip(expected, candidates, strict=True):
        found = detections_of(each)
        assert len(found) == len(wanted["scores"])
        np.testing.assert_allclose(found[:, 0], wanted["scores"], atol=1e-5)
        np.testing.assert_allclose(np.sort(found[:, 2:], axis=0), np.sort(wanted["boxes"].numpy(), axis=0), atol=1e-3)


def test_predictions_take_no_more_memory_than_allowed_and_say_what_they_leave_out() -> None:
    images, _ = shapes_detector.inputs(range(2))
    with torch.inference_mode():
        network = opened_detector(shapes_detector.trained())
        raw, other = network(images), sparse_copy(network, "backbone.stem.0.0", 0.3)(images)
    whole, kept = DETECTION.predictions(raw), DETECTION.predictions(raw, most_bytes=8_000)
    assert num_bytes(kept) < 0.8 * num_bytes(whole)
    note = DETECTION.predictions_note(raw, most_bytes=8_000)
    assert note == "The divergence is of 200 of 320 boxes of each image."
    exact = DIVERGENCE.moments(whole, DETECTION.predictions(other), None)[2]
    part = DIVERGENCE.moments(kept, DETECTION.predictions(other, most_bytes=8_000), None)[2]
    assert part == pytest.approx(exact, rel=0.5)
    assert OBJECTS.moments(whole, DETECTION.predictions(other), None) == OBJECTS.moments(
        kept, DETECTION.predictions(other, most_bytes=8_000), None
    )


def test_the_uncompressed_network_diverges_by_nothing() -> None:
    images, targets = shapes_detector.inputs(range(6))
    with torch.inference_mode():
        same = DETECTION.predictions(opened_detector(shapes_detector.trained())(images))
    for metric in DETECTION.own_metrics:
        change = metric.change(metric.moments(same, same, targets if metric.needs_labels else None))
        assert change.delta == 0 or np.isnan(change.delta), metric.name


def test_a_detector_that_finds_nothing_is_mentioned() -> None:
    """Nothing can be lost then, so that all figures say that nothing is."""
    faint = torch.tensor([[0.29, 1.0, 0.0, 0.0, 8.0, 8.0]])
    sure = torch.tensor([[0.31, 1.0, 0.0, 0.0, 8.0, 8.0]])
    note = DETECTION.baseline_note(Columns(parts={"candidates": (faint, faint[:0])}))
    assert note.startswith("The uncompressed model finds no object with a score of at least 0.3 in these images")
    assert DETECTION.baseline_note(Columns(parts={"candidates": (faint, sure)})) == ""


def test_a_metric_of_whole_schedules_ranks_no_layers() -> None:
    images = TensorImages(*shapes_detector.inputs(range(2)))
    spec = SensitivitySpec(levels=(0.5,), num_samples=2, metric=MAP.name, device="cpu")
    with pytest.raises(InvalidSpec, match="map is measured of whole schedules, not of each layer"):
        Sweep.open(opened_detector(shapes_detector.trained()), images, spec, task=DETECTION)
