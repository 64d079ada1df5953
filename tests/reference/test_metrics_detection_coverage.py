"""Coverage of the intervals of average precision and F1 by simulation: samples from a large population of images."""

from collections.abc import Callable

import numpy as np
import pytest

from senseapp.metrics.detection import MAP, OBJECTS
from senseapp.metrics.detection.matching import Floats, Objects
from senseapp.metrics.records import Record

POPULATION, CLASSES = 4_000, 3
SIMULATIONS = 200


def population(seed: int) -> tuple[list[Record], list[Record], list[Record], list[Record]]:
    """Return records of average precision and of F1, before and after: the compressed model misses and shifts more."""
    generator = np.random.default_rng(seed)
    precise: tuple[list[Record], list[Record]] = ([], [])
    counted: tuple[list[Record], list[Record]] = ([], [])
    for _ in range(POPULATION):
        number = int(generator.integers(1, 6))
        corner, side = generator.uniform(0, 200, (number, 2)), generator.uniform(20, 60, (number, 2))
        boxes, labels = np.concatenate([corner, corner + side], axis=1), generator.integers(1, CLASSES + 1, number)
        hard = generator.beta(2, 5)  # of the picture: objects of one picture are alike
        objects = Objects.of(boxes, labels)
        before = detections(boxes, labels, 0.1 + 0.4 * hard, 2.0, np.random.default_rng(generator.integers(2**32)))
        after = detections(boxes, labels, 0.15 + 0.6 * hard, 3.0, np.random.default_rng(generator.integers(2**32)))
        own = Objects.of(before[:, 2:], before[:, 1].astype(np.int64))
        for side_of, found in enumerate((before, after)):
            precise[side_of].append(MAP.image_record(found, objects))
            counted[side_of].append(OBJECTS.image_record(found, own))
    return *precise, *counted


def detections(
    boxes: Floats, labels: np.ndarray, missed: float, shift: float, generator: np.random.Generator
) -> Floats:
    kept = generator.random(len(boxes)) > missed
    moved = boxes[kept] + generator.normal(0, shift, (int(kept.sum()), 4))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    scores = generator.beta(4, 2, len(moved)) * 0.65 + 0.35
    rows = np.concatenate([scores[:, None], labels[kept][:, None].astype(float), moved], axis=1)
    return rows[np.argsort(-rows[:, 0])]


def packed_moments(before: list[Record], after: list[Record], chosen: np.ndarray) -> tuple[float, ...]:
    found = [float(len(chosen))]
    for index in chosen.tolist():
        for record in (before[index], after[index]):
            found += [float(len(record)), *record]
    return tuple(found)


@pytest.mark.slow
@pytest.mark.wide
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_images", [40, 100])
def test_intervals_cover_the_truth(num_images: int, record_property: Callable[[str, object], None]) -> None:
    records = population(0)
    for metric, before, after in ((MAP, *records[:2]), (OBJECTS, *records[2:])):
        truth = metric.value_of(before) - metric.value_of(after)
        generator, hits = np.random.default_rng(1), 0
        for _ in range(SIMULATIONS):
            chosen = generator.integers(0, POPULATION, num_images)
            low, high = metric.interval(packed_moments(before, after, chosen), 0.95)
            hits += low <= truth <= high
        share = hits / SIMULATIONS
        record_property(metric.name, share)
        assert 0.9 < share < 0.99, metric.name  # docs/INTERVALS.md, with the spread of so few simulations
