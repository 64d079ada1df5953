"""Outputs of pixels: measured as by a plain loop, estimated, and compared in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

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
    yield
    for registry, members in before:
        registry.clear()
        registry.update(members)


SCENES = [scene(number) for number in range(NUM_IMAGES)]


def scenes() -> tuple[Tensor, Tensor]:
    pictures = torch.stack([torch.from_numpy(each.picture) for each in SCENES])
    masks = torch.stack([torch.from_numpy(each.mask) for each in SCENES])
    return (pictures.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25, masks


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


def test_estimates_of_dense_outputs_rank_and_size_what_is_measured():
    sweep = opened(segmentation_network().eval(), SEGMENTATION, None)
    estimated = {item.key: item.change(PIXEL_KL.name).delta for item in quick_scan(sweep)}
    measured = {item.key: item.change(PIXEL_KL.name).delta for item in sweep.measure()}
    assert estimated.keys() == measured.keys()
    pairs = [(estimated[key], measured[key]) for key in measured]
    assert spearman(*zip(*pairs, strict=True)) > 0.85
    small = [one / other for one, other in pairs if other < 0.05]
    assert all(1 / 5 < ratio < 5 for ratio in small)


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
