"""Metrics of pixels: every number is compared with NumPy's, pixel by pixel, and intervals with simulated truth."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import log_softmax
from torch import Tensor

from senseapp.core.errors import InvalidInput
from senseapp.metrics import METRICS, change_of
from senseapp.metrics.predictions import num_bytes
from senseapp.metrics.segmentation import (
    ACCURACY,
    AGREEMENT,
    DIVERGENCE,
    MIOU,
    MIOU_AGREEMENT,
    MOST_POSITIONS,
    VOID,
    grid_of,
)
from senseapp.tasks import SEGMENTATION

Array = npt.NDArray[np.float64]
COUNT, CLASSES, HEIGHT, WIDTH = 40, 4, 9, 11


def scores(seed: int, count: int = COUNT) -> Tensor:
    return torch.randn(count, CLASSES, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(seed))


def damaged(seed: int = 1) -> tuple[Tensor, Tensor]:
    before = 2 * scores(seed)
    return before, before + scores(seed + 100)


def masks(seed: int = 5) -> Tensor:
    """Classes with some void pixels; the last class does not occur."""
    generator = np.random.default_rng(seed)
    found = generator.integers(0, CLASSES - 1, (COUNT, HEIGHT, WIDTH)).astype(np.uint8)
    found[generator.random(found.shape) < 0.2] = VOID
    return torch.from_numpy(found)


def moments(metric, before: Tensor, after: Tensor, targets: Tensor | None = None) -> tuple[float, ...]:  # type: ignore[no-untyped-def]
    return metric.moments(SEGMENTATION.predictions(before), SEGMENTATION.predictions(after), targets)


def iou_by_numpy(truth: Array, found: Array) -> list[float]:
    """Return the IoU of each class that occurs in ``truth``, pixel by pixel."""
    known = truth != VOID
    shares = []
    for number in range(CLASSES):
        one, other = (truth == number) & known, (found == number) & known
        if one.any():
            shares.append(float((one & other).sum() / (one | other).sum()))
    return shares


def test_divergence_is_the_mean_over_pixels_then_over_images() -> None:
    before, after = damaged()
    first, second = (log_softmax(each.double().numpy(), axis=1) for each in (before, after))
    wanted = (np.exp(first) * (first - second)).sum(1).mean((1, 2))
    found = change_of(DIVERGENCE.name, moments(DIVERGENCE, before, after))
    assert found.delta == pytest.approx(wanted.mean(), rel=1e-5)
    assert 0 < found.ci_low < found.delta < found.ci_high
    assert change_of(DIVERGENCE.name, moments(DIVERGENCE, before, before)).delta == 0


def test_agreement_and_accuracy_count_pixels() -> None:
    (before, after), truth = damaged(), masks().numpy()
    old, new = before.argmax(1).numpy(), after.argmax(1).numpy()
    agreement = change_of(AGREEMENT.name, moments(AGREEMENT, before, after))
    assert agreement.value == pytest.approx((old == new).mean())
    accuracy = change_of(ACCURACY.name, moments(ACCURACY, before, after, masks()))
    known = truth != VOID
    assert accuracy.baseline == pytest.approx((old == truth)[known].mean())
    assert accuracy.value == pytest.approx((new == truth)[known].mean())
    assert accuracy.ci_low < accuracy.delta < accuracy.ci_high


@pytest.mark.parametrize("labelled", [True, False])
def test_mean_iou_is_of_all_images_together(labelled: bool) -> None:
    before, after = damaged()
    metric, targets = (MIOU, masks()) if labelled else (MIOU_AGREEMENT, None)
    old, new = before.argmax(1).numpy(), after.argmax(1).numpy()
    truth = masks().numpy() if labelled else old
    found = change_of(metric.name, moments(metric, before, after, targets))
    assert found.baseline == pytest.approx(np.mean(iou_by_numpy(truth, old)))
    assert found.value == pytest.approx(np.mean(iou_by_numpy(truth, new)))
    assert found.ci_low < found.delta < found.ci_high
    of_classes = metric.of_classes(found.moments)
    lost = np.array(iou_by_numpy(truth, old)) - np.array(iou_by_numpy(truth, new))
    assert [each.drop for each in of_classes] == pytest.approx(lost.tolist())
    assert [each.index for each in of_classes] == list(range(CLASSES - 1 if labelled else CLASSES))
    assert all(each.low < each.drop < each.high for each in of_classes)


@pytest.mark.parametrize("metric", [MIOU, ACCURACY, DIVERGENCE, AGREEMENT], ids=lambda metric: metric.name)
def test_parts_of_the_images_merge(metric) -> None:  # type: ignore[no-untyped-def]
    (before, after), truth = damaged(), masks()
    whole = moments(metric, before, after, truth)
    parts = [moments(metric, before[part], after[part], truth[part]) for part in (slice(0, 13), slice(13, None))]
    assert METRICS[metric.name].merge(*parts) == pytest.approx(whole)


def test_a_mask_of_another_resolution_is_read_at_the_nearest_pixel() -> None:
    before, after = damaged()
    small = masks()
    large = small.repeat_interleave(3, 1).repeat_interleave(3, 2)
    for metric in (MIOU, ACCURACY):
        assert moments(metric, before, after, large) == pytest.approx(moments(metric, before, after, small))


def test_scores_that_are_not_numbers_are_of_no_class() -> None:
    before, after = damaged()
    after[0] = math.nan
    assert moments(AGREEMENT, before[:1], after[:1])[2] == 1
    assert change_of(DIVERGENCE.name, moments(DIVERGENCE, before, after)).delta == math.inf
    assert change_of(MIOU_AGREEMENT.name, moments(MIOU_AGREEMENT, before[:1], after[:1])).value == 0


def test_probabilities_and_one_map_are_read_as_scores() -> None:
    before, after = damaged()
    as_probabilities = [each.softmax(1) for each in (before, after)]
    for metric in (DIVERGENCE, AGREEMENT):
        assert moments(metric, *as_probabilities) == pytest.approx(moments(metric, before, after), rel=1e-3)
    logits, other = before[:, :1], after[:, :1]
    two = [torch.cat([torch.zeros_like(each), each], 1) for each in (logits, other)]
    for metric in (DIVERGENCE, AGREEMENT):
        assert moments(metric, logits, other) == moments(metric, *two)
        one_map = moments(metric, logits.sigmoid(), other.sigmoid())
        assert one_map == pytest.approx(moments(metric, *two), rel=1e-3)


@pytest.mark.parametrize("most_bytes", [None, 200_000])
def test_probabilities_are_kept_on_an_even_grid_in_bounded_memory(most_bytes: int | None) -> None:
    rows, columns = grid_of((21, 130, 170), most_bytes)
    assert 0.9 * min(MOST_POSITIONS, (most_bytes or 10**9) // 84 - 263) <= len(rows) * len(columns) <= MOST_POSITIONS
    for places, length in ((rows, 130), (columns, 170)):
        gaps = np.diff(places)
        assert gaps.max() - gaps.min() <= 1
        assert places[0] <= gaps.max()
        assert length - 1 - places[-1] <= gaps.max()
    smooth = torch.nn.functional.interpolate(torch.randn(2, 21, 17, 22), (130, 170), mode="bilinear")
    noise = torch.nn.functional.interpolate(torch.randn(2, 21, 17, 22), (130, 170), mode="bilinear")
    kept = [SEGMENTATION.predictions(each, most_bytes=most_bytes) for each in (3 * smooth, 3 * smooth + noise)]
    if most_bytes:
        assert num_bytes(kept[0]) <= 2 * most_bytes
    first, second = (log_softmax(each.double().numpy(), axis=1) for each in (3 * smooth, 3 * smooth + noise))
    exact = (np.exp(first) * (first - second)).sum(1).mean()
    found = change_of(DIVERGENCE.name, DIVERGENCE.moments(*kept, None)).delta
    assert found == pytest.approx(exact, rel=0.03)
    note = SEGMENTATION.predictions_note(smooth, most_bytes=most_bytes)
    assert note.startswith(f"Harm is compared at {len(rows) * len(columns):,} of 22,100 pixels of each image")


def test_masks_that_do_not_belong_to_the_model_are_refused() -> None:
    predictions = SEGMENTATION.predictions(scores(0))
    with pytest.raises(InvalidInput, match="40 images need as many labels"):
        MIOU.moments(predictions, predictions, masks()[:3])
    refused = {
        r"class numbers below 2, .* got 2": masks(),
        r"All pixels of all masks are void \(255\)": torch.full_like(masks(), VOID),
        "Masks hold only 0 and 255": torch.where(masks() == VOID, VOID, 0).byte(),
        "need as many masks": masks()[0],
    }
    for words, targets in refused.items():
        with pytest.raises(InvalidInput, match=words):
            SEGMENTATION.check_targets(targets, COUNT, 2)


def test_the_last_of_many_masks_is_checked_too() -> None:
    targets = torch.full((19, 4, 4), VOID, dtype=torch.uint8)
    targets[-1, -1, -1] = 2
    SEGMENTATION.check_targets(targets, 19, 3)
    with pytest.raises(InvalidInput, match="got 2"):
        SEGMENTATION.check_targets(targets, 19, 2)
    targets[-1, -1, -1] = 0
    with pytest.raises(InvalidInput, match="only 0 and 255"):
        SEGMENTATION.check_targets(targets, 19, 2)


def test_moments_without_any_known_pixel_say_nothing() -> None:
    before, after = damaged()
    void = torch.full_like(masks(), VOID)
    for metric in (MIOU, ACCURACY):
        found = change_of(metric.name, moments(metric, before, after, void))
        assert math.isnan(found.delta)
        assert (found.ci_low, found.ci_high) == (-1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("num_images", [16, 48, 400])
def test_intervals_of_pixel_accuracy_cover_the_truth(num_images: int) -> None:
    generator, repeats, hits = np.random.default_rng(3), 1000, 0
    known = generator.lognormal(0, 0.5, 20_000)
    lost = known * generator.beta(1, 12, 20_000) * (generator.random(20_000) < 0.6)
    truth = lost.sum() / known.sum()
    for _ in range(repeats):
        drawn = generator.integers(0, len(known), num_images)
        d, v = lost[drawn], known[drawn]
        terms = (0.9 * v, d, v, d**2, d * v, v**2, d**3, d**2 * v, d * v**2, v**3)
        low, high = ACCURACY.interval((float(num_images), *(float(each.sum()) for each in terms)), 0.95)
        hits += low <= truth <= high
    assert 0.93 - 0.01 < hits / repeats < 0.97 + 0.01
