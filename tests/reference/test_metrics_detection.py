"""Average precision against pycocotools, which is an independent implementation, and against plain loops."""

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from senseapp.metrics.detection import MAP, MAP_50, METRICS_BY_SIZE, OBJECTS, annotated, object_counts
from senseapp.metrics.detection.matching import Objects, best_threshold, match_image, packed
from senseapp.metrics.detection.rows import LEAST_SCORE
from senseapp.metrics.predictions import Columns
from senseapp.tasks.detection import DETECTION
from tests.cases import first_of

IMAGES, CLASSES = 30, 4


def random_objects(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return boxes of all sizes, classes and crowd marks."""
    corner = generator.uniform(0, 200, (count, 2))
    side = np.exp(generator.uniform(np.log(8), np.log(200), (count, 2)))
    labels = generator.integers(1, CLASSES + 1, count)
    return np.concatenate([corner, corner + side], axis=1), labels, generator.random(count) < 0.15


def set_of_images(seed: int) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
    """Return detections (n, 6) and annotated objects of each image; most detections are near an object."""
    generator = np.random.default_rng(seed)
    detections, targets = [], []
    for _ in range(IMAGES):
        boxes, labels, crowd = random_objects(generator, int(generator.integers(0, 8)))
        near = boxes + generator.normal(0, 6, boxes.shape)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        other, wrong, _ = random_objects(generator, int(generator.integers(0, 6)))
        found = np.concatenate([near, other])
        classes = np.concatenate([labels, wrong])
        scores = np.round(generator.random(len(found)), 2)  # some are equal
        order = np.argsort(-scores, kind="stable")
        detections.append(np.concatenate([scores[:, None], classes[:, None], found], axis=1)[order])
        targets.append({"boxes": boxes, "labels": labels, "crowd": crowd})
    return detections, targets


def coco_evaluated(detections: list[np.ndarray], targets: list[dict[str, Any]]) -> COCOeval:
    """Return pycocotools' matches."""
    truth = COCO()
    annotations = [
        {
            "id": 1 + sum(len(each["boxes"]) for each in targets[:image]) + place,
            "image_id": image,
            "category_id": int(label),
            "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
            "area": (box[2] - box[0]) * (box[3] - box[1]),
            "iscrowd": int(crowd),
        }
        for image, target in enumerate(targets)
        for place, (box, label, crowd) in enumerate(
            zip(target["boxes"].tolist(), target["labels"], target["crowd"], strict=True)
        )
    ]
    truth.dataset = {
        "images": [{"id": image} for image in range(len(targets))],
        "annotations": annotations,
        "categories": [{"id": label} for label in range(1, CLASSES + 1)],
    }
    rows = [
        {
            "image_id": image,
            "category_id": int(row[1]),
            "bbox": [row[2], row[3], row[4] - row[2], row[5] - row[3]],
            "score": row[0],
        }
        for image, found in enumerate(detections)
        for row in found.tolist()
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluated = COCOeval(truth, truth.loadRes(rows), "bbox")
        evaluated.evaluate()
    return evaluated


def coco_stats(detections: list[np.ndarray], targets: list[dict[str, Any]]) -> np.ndarray:
    """Return what pycocotools says: mAP, mAP@.5, mAP@.75, small, medium, large, ..."""
    evaluated = coco_evaluated(detections, targets)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluated.accumulate()
        evaluated.summarize()
    return np.asarray(evaluated.stats)


def coco_f1(detections: list[np.ndarray], targets: list[dict[str, Any]], threshold: float) -> float:
    """Return F1 at half an overlap of the detections from a score on, all others left out before they are matched."""
    sure = [each[each[:, 0] >= threshold] for each in detections]
    of_all = [each for each in coco_evaluated(sure, targets).evalImgs if each and each["aRng"] == [0, 1e10]]
    right = sum(int(((each["dtMatches"][0] > 0) & ~each["dtIgnore"][0]).sum()) for each in of_all)
    found = sum(int((~each["dtIgnore"][0]).sum()) for each in of_all)
    return 2 * right / max(1, found + sum(int((each["gtIgnore"] == 0).sum()) for each in of_all))


@pytest.mark.parametrize("seed", first_of(range(6)))
def test_no_other_threshold_has_a_better_f1(seed: int) -> None:
    detections, targets = set_of_images(seed)
    detections = [each[each[:, 0] > LEAST_SCORE] for each in detections]
    objects = [Objects.of(each["boxes"], each["labels"], each["crowd"]) for each in targets]
    chosen = best_threshold(zip(detections, objects, strict=True))
    scores = np.unique(np.concatenate(detections)[:, 0])
    best = max(coco_f1(detections, targets, score) for score in scores[:: max(1, len(scores) // 40)])
    assert coco_f1(detections, targets, chosen) >= best
    assert not np.isclose(scores, chosen).any()


def test_objects_count_from_the_threshold_of_each_network() -> None:
    """All scores of a copy are a third: it keeps every object only by a threshold of its own."""
    detections, _ = set_of_images(2)
    apart = [each[:1] for each in detections]
    paler = [each * np.array([1 / 3, 1, 1, 1, 1, 1]) for each in apart]
    before, after = columns(apart), columns(paler)
    expected = sum(int((each[:, 0] >= 0.45).sum()) for each in apart)
    there, found, same = object_counts(OBJECTS.moments(DETECTION.at_threshold(before, 0.45), after, None))
    assert (there, found, same) == (expected, sum(int((each[:, 0] >= 0.3).sum()) for each in paler), found)
    own = DETECTION.at_threshold(after, 0.15)
    assert object_counts(OBJECTS.moments(DETECTION.at_threshold(before, 0.45), own, None)) == (expected,) * 3
    chosen = DETECTION.score_threshold(after, None, DETECTION.at_threshold(before, 0.45))
    scores = np.concatenate(apart)[:, 0]
    assert max(scores[scores < 0.45]) < 3 * chosen < min(scores[scores >= 0.45])


@pytest.mark.parametrize("seed", first_of(range(6)))
def test_average_precision_is_that_of_pycocotools(seed: int) -> None:
    detections, targets = set_of_images(seed)
    expected, pairs = coco_stats(detections, targets), list(zip(detections, targets, strict=True))
    for place, area in ((0, "all"), (3, "small"), (4, "medium"), (5, "large")):
        records = [
            packed(match_image(found, Objects.of(each["boxes"], each["labels"], each["crowd"]), area=area))
            for found, each in pairs
        ]
        assert MAP.value_of(records) == pytest.approx(expected[place], abs=1e-9), area
        if area == "all":
            half = [MAP_50.image_record(found, annotated(each)) for found, each in pairs]
            assert MAP_50.value_of(half) == pytest.approx(expected[1], abs=1e-9)


def test_an_image_that_counts_twice_is_an_image_that_is_there_twice() -> None:
    detections, targets = set_of_images(7)
    objects = [Objects.of(each["boxes"], each["labels"], each["crowd"]) for each in targets]
    records = [packed(match_image(*pair)) for pair in zip(detections, objects, strict=True)]
    counts = np.random.default_rng(0).multinomial(IMAGES, np.full(IMAGES, 1 / IMAGES), size=5)
    drawn = [[record for record, count in zip(records, row, strict=True) for _ in range(count)] for row in counts]
    found = MAP.values_of(records, counts.astype(float))
    assert found == pytest.approx([MAP.value_of(each) for each in drawn], abs=2e-3)


def columns(detections: list[np.ndarray]) -> Columns:
    return Columns(
        parts={
            "rows": torch.zeros(len(detections), 1, 10),
            "num_rows": torch.ones(len(detections)),
            "candidates": tuple(torch.from_numpy(each) for each in detections),
        }
    )


def box(score: float, label: int, left: float) -> list[float]:
    return [score, label, left, 0.0, left + 20.0, 20.0]


def test_objects_are_kept_lost_moved_and_new() -> None:
    before = [np.array([box(0.9, 1, 0), box(0.8, 1, 50), box(0.7, 2, 100), box(0.1, 2, 150)])]
    after = [np.array([box(0.9, 1, 2), box(0.8, 1, 65), box(0.25, 2, 100), box(0.6, 2, 200)])]
    change = OBJECTS.change(OBJECTS.moments(columns(before), columns(after), None))
    assert object_counts(change.moments) == (3, 3, 1)
    assert (change.baseline, change.value) == (1.0, pytest.approx(1 / 3))
    assert OBJECTS.kept_text(change) == "keep 1 of 3 objects (2 lost or moved, and 2 are new)"


def test_moments_of_shards_merge_to_those_of_all_images() -> None:
    detections, targets = set_of_images(11)
    moved = [each.copy() for each in detections]
    for each in moved:
        each[:, 2:] += 3
    for metric in (MAP, *METRICS_BY_SIZE, OBJECTS):
        labels = targets if metric.needs_labels else None
        whole = metric.moments(columns(detections), columns(moved), labels)
        parts = [
            metric.moments(columns(detections[cut]), columns(moved[cut]), None if labels is None else labels[cut])
            for cut in (slice(0, 9), slice(9, None))
        ]
        assert metric.merge(*parts) == whole
        change = metric.change(whole)
        assert change.ci_low <= change.delta <= change.ci_high
        assert change.num_samples == IMAGES
