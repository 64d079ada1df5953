"""Outputs of pixels and of boxes: measured as by a plain loop, estimated, and compared in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidSpec
from senseapp.data.images import TensorImages
from senseapp.measure.context import MeasurementContext
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.metrics import METRICS
from senseapp.metrics.predictions import num_bytes
from senseapp.records.resolution import spearman
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import TASKS, Task
from tests.plain_loop import sparse_copy
from tests.toy_detection import DETECTION
from tests.toy_detection import network as detection_network
from tests.toy_detection.metrics import AP
from tests.toy_detection.metrics import DIVERGENCE as BOX_KL
from tests.toy_rectangles import CLASSES, scene
from tests.toy_segmentation import SEGMENTATION
from tests.toy_segmentation import network as segmentation_network
from tests.toy_segmentation.metrics import AGREEMENT, MIOU
from tests.toy_segmentation.metrics import DIVERGENCE as PIXEL_KL

NUM_IMAGES = 24
LEVELS = (0.5, 0.9)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = [(registry, dict(registry)) for registry in (TASKS, METRICS)]
    TASKS.register(SEGMENTATION)
    TASKS.register(DETECTION)
    yield
    for registry, members in before:
        registry.clear()
        registry.update(members)


SCENES = [scene(number) for number in range(NUM_IMAGES)]


def scenes() -> tuple[Tensor, Tensor]:
    pictures = torch.stack([torch.from_numpy(each.picture) for each in SCENES])
    masks = torch.stack([torch.from_numpy(each.mask) for each in SCENES])
    return (pictures.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25, masks


def boxes() -> tuple[dict[str, Tensor], ...]:
    found = [torch.tensor(each.rectangles, dtype=torch.float32).reshape(-1, 5) for each in SCENES]
    return tuple({"boxes": each[:, 1:], "labels": each[:, 0].long()} for each in found)


def opened(network: nn.Module, task: Task, labels: object, mode: str = "exact") -> Sweep:
    images = TensorImages(scenes()[0], labels)  # type: ignore[arg-type]
    spec = SensitivitySpec(levels=LEVELS, num_samples=NUM_IMAGES, mode=mode, device="cpu")  # type: ignore[arg-type]
    return Sweep.open(network, images, spec, task=task)


def mean_iou(scores: Tensor, masks: Tensor) -> float:
    found, shares = scores.argmax(1), []
    for each in range(len(CLASSES)):
        one, other = found == each, masks == each
        shares.append(float((one & other).sum() / (one | other).sum()))
    return sum(shares) / len(shares)


def test_layers_of_a_segmentation_network_are_measured_as_by_a_plain_loop() -> None:
    network, (images, masks) = segmentation_network().eval(), scenes()
    sweep = opened(network, SEGMENTATION, masks)
    found = {item.key: item for item in sweep.measure()}
    assert len(found) == 3 * len(LEVELS)
    with torch.inference_mode():
        before = network(images).double()
        for (layer, _), item in found.items():
            after = sparse_copy(network, layer, item.achieved_level)(images).double()
            kl = (
                nn.functional.kl_div(after.log_softmax(1), before.log_softmax(1), log_target=True, reduction="sum")
                / images[:, 0].numel()
            )
            assert item.change(PIXEL_KL.name).delta == pytest.approx(float(kl), rel=1e-3, abs=1e-7)
            assert item.change(MIOU.name).value == pytest.approx(mean_iou(after, masks), abs=1e-3)
            same = (before.argmax(1) == after.argmax(1)).double().mean()
            assert item.change(AGREEMENT.name).value == pytest.approx(float(same), abs=1e-3)
            assert item.change(MIOU.name).ci_low <= item.change(MIOU.name).delta <= item.change(MIOU.name).ci_high


@pytest.mark.parametrize(
    ("network", "task", "metric"),
    [(segmentation_network, SEGMENTATION, PIXEL_KL.name), (detection_network, DETECTION, BOX_KL.name)],
)
def test_estimates_of_dense_outputs_rank_and_size_what_is_measured(network, task, metric) -> None:  # type: ignore[no-untyped-def]
    sweep = opened(network().eval(), task, None)
    estimated = {item.key: item.change(metric).delta for item in quick_scan(sweep)}
    measured = {item.key: item.change(metric).delta for item in sweep.measure()}
    assert estimated.keys() == measured.keys()
    pairs = [(estimated[key], measured[key]) for key in measured]
    assert spearman(*zip(*pairs, strict=True)) > 0.85
    small = [one / other for one, other in pairs if other < 0.05]
    assert all(1 / 5 < ratio < 5 for ratio in small)


def test_boxes_are_measured_and_a_detector_without_weights_finds_nothing() -> None:
    network, (images, _) = detection_network().eval(), scenes()
    truths = boxes()
    with torch.inference_mode():
        predictions = DETECTION.predictions(network(images))
        change = AP.change(AP.moments(predictions, predictions, truths))
        assert change.baseline > 0.2
        empty = DETECTION.predictions(sparse_copy(network, "head", 1.0)(images))
        lost = AP.change(AP.moments(predictions, empty, truths))
    assert change.delta == 0
    assert 0 < -change.ci_low <= change.ci_high  # so few images do not show that no other one changes
    assert lost.delta == pytest.approx(change.baseline, abs=0.05)
    assert lost.ci_low > 0


def test_predictions_of_pixels_take_no_more_memory_than_allowed_and_say_what_they_leave_out() -> None:
    scores = torch.randn(2, 21, 130, 130)
    allowed = 100_000
    kept = SEGMENTATION.predictions(scores, most_bytes=allowed)
    assert num_bytes(kept) <= 2 * allowed
    note = SEGMENTATION.predictions_note(scores, most_bytes=allowed)
    assert note == "KL divergence over 989 of 16,900 pixels of each image."
    whole = SEGMENTATION.predictions(scores)
    other = scores + 0.3 * torch.randn(scores.shape)
    exact = PIXEL_KL.moments(whole, SEGMENTATION.predictions(other), None)
    part = PIXEL_KL.moments(kept, SEGMENTATION.predictions(other, most_bytes=allowed), None)
    assert part[2] == pytest.approx(exact[2], rel=0.1)
    assert AGREEMENT.moments(whole, SEGMENTATION.predictions(other), None) == AGREEMENT.moments(
        kept, SEGMENTATION.predictions(other, most_bytes=allowed), None
    )


def test_the_memory_of_predictions_is_shared_by_the_images_of_a_run() -> None:
    images, _ = scenes()
    few = MeasurementContext.prepare(segmentation_network(), TensorImages(images[:4]), task=SEGMENTATION)
    many = MeasurementContext.prepare(segmentation_network(), TensorImages(images), task=SEGMENTATION)
    assert 460e6 < few.prediction_bytes * 4 < 500e6
    assert 460e6 < many.prediction_bytes * NUM_IMAGES < 500e6


def test_a_metric_of_whole_schedules_ranks_no_layers() -> None:
    images, _ = scenes()
    sweep = opened(detection_network(), DETECTION, boxes())
    assert AP.name not in sweep.baseline.metrics
    spec = SensitivitySpec(levels=LEVELS, num_samples=NUM_IMAGES, metric=AP.name, device="cpu")
    with pytest.raises(InvalidSpec, match="toy_ap is measured of whole schedules, not of each layer"):
        Sweep.open(detection_network(), TensorImages(images), spec, task=DETECTION)
