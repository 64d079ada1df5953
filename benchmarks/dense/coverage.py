"""How often 95 % intervals of mean IoU, mAP and F1 hold the truth: ``python -m benchmarks.dense.coverage``.

Samples of images come from simulated populations; the intervals are those of the product's metrics, which get the same
records as in a run. The truth is the figure of the whole population; of average precision and F1
the mean over samples of 1,000 images, as average precision at 101 recalls rounds the figure of one set of images by up
to 1/101 for each class.

A cell is the share of intervals of the drop that hold the population's; in brackets the expected images that lose an
object, and the shares of intervals that end below it and that start above. *Few lost* and *barely any*: 3 and 1 % of
the objects are lost; *many*: 20 %; *as many found*: 5 % are lost, and about as many found anew; *crowded*: 15 to 40
objects an image, 3 % lost; the others have 1 to 5.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.results import keep
from senseapp.core.texts import plural
from senseapp.metrics.detection import AGREEMENT, AGREEMENT_50, MAP, MAP_50, OBJECTS, DetectionRecordMetric
from senseapp.metrics.detection.matching import Objects
from senseapp.metrics.detection.rows import SURE_SCORE
from senseapp.metrics.records import Record, RecordMetric
from senseapp.metrics.segmentation import MIOU
from tests.reference.test_metrics_detection_coverage import detections, packed_moments

NUM_IMAGES = (20, 50, 100, 300)
_SEED = 4141
_EXPECTED_IMAGES = 1_000  # of the figure that intervals are of: that of all images would be rounded by chance
_TRUTH_SAMPLES = 100
_METRICS: tuple[DetectionRecordMetric, ...] = (MAP, MAP_50, AGREEMENT, AGREEMENT_50, OBJECTS)
Draw = Callable[[np.random.Generator, int], tuple[float, float]]
"""Returns the interval of a sample of so many images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """A simulated detector and its pictures.

    Attributes:
        about: what it is called.
        classes: of objects.
        missed, found: shares of the objects that the compressed model loses and finds anew, more in hard images.
        shift: by how many pixels it moves boxes, standard deviation.
        noise: of scores, standard deviation.
        hit: share of images in which all losses happen.
        objects: least and most of an image.
        side: of an image, in pixels.
        population: images.
    """

    about: str
    classes: int = 3
    missed: float = 0.03
    found: float = 0.0
    shift: float = 0.5
    noise: float = 0.03
    hit: float = 1.0
    objects: tuple[int, int] = (1, 5)
    side: int = 200
    population: int = 4_000


_DETECTORS = (
    Detector(about="few lost"),
    Detector(about="barely any lost", missed=0.01, shift=0.2),
    Detector(about="many lost", missed=0.2, shift=1.0),
    Detector(about="as many found as lost", missed=0.05, found=0.15),
    Detector(about="one class, few lost", classes=1),
    Detector(about="many classes", classes=12, missed=0.1),
    Detector(about="half of the objects of 15 % of the images", classes=1, objects=(1, 6), missed=0.08, hit=0.15),
    Detector(about="fifteen classes", classes=15, objects=(2, 6), missed=0.06, noise=0.05, side=300),
    Detector(about="more found than lost", found=0.12, noise=0.06),
    Detector(about="small images, many lost", classes=2, objects=(1, 2), missed=0.25, shift=1.5),
    Detector(about="one class, barely any lost or found", classes=1, objects=(1, 3), missed=0.01, found=0.05),
    Detector(about="all objects of 6 % of the images", objects=(2, 8), missed=0.05, hit=0.06, side=250),
    Detector(about="eight classes, 40 % of the images", classes=8, objects=(1, 4), missed=0.15, noise=0.1, hit=0.4),
    Detector(about="crowded, few lost", objects=(15, 40), side=500, population=1_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is sampled.

    Attributes:
        title: of the row.
        truth: the drop of the population.
        losing: share of images that lose an object.
        draw: returns the interval of a sample.
    """

    title: str
    truth: float
    losing: float = math.nan
    draw: Draw


def _segmented(classes: int, share: float, damage: float) -> np.ndarray:
    """Return sums of pixels, (images, classes, 5): true, found before and after, right before and after."""
    generator = np.random.default_rng(1)
    count = 20_000
    occurs = generator.random((count, classes)) < np.array([1.0] + [share] * (classes - 1))
    sizes = generator.lognormal(0, 1, (count, classes)) * occurs
    true = 1000 * sizes / sizes.sum(1, keepdims=True)
    right = true * generator.beta(6, 2, true.shape)
    lost = generator.beta(1, 8, true.shape) * damage * (generator.random(true.shape) < 0.5)
    left = right * (1 - lost) + (true - right) * generator.beta(1, 8, true.shape) * damage * 0.3
    spread = generator.dirichlet(np.ones(classes - 1), count)
    found = []
    for kept in (right, left):
        wrong = true - kept
        each = kept.copy()
        each[:, 0] += wrong[:, 1:].sum(1)
        each[:, 1:] += spread * wrong[:, :1]
        found.append(each)
    return np.stack([true, *found, right, left], axis=2)


def mean_iou_moments(sums: np.ndarray) -> tuple[float, ...]:
    """Return the moments of mean IoU of images with such sums of pixels, (images, classes, 5)."""
    labels = np.broadcast_to(np.arange(sums.shape[1]), sums.shape[:2])
    before, after = (
        np.stack([labels, sums[:, :, 0], sums[:, :, 1 + side], sums[:, :, 3 + side]], axis=2).reshape(len(sums), -1)
        for side in (0, 1)
    )
    return packed_moments(before.tolist(), after.tolist(), np.arange(len(sums)))


def segmentation_cases() -> Iterator[Case]:
    """Yield the cases of mean IoU."""
    for classes, share, damage in ((2, 1.0, 0.05), (5, 0.5, 0.8), (21, 0.1, 0.05)):
        images = _segmented(classes, share, damage)

        def draw(generator: np.random.Generator, count: int, images: np.ndarray = images) -> tuple[float, float]:
            return MIOU.interval(mean_iou_moments(images[generator.integers(0, len(images), count)]), 0.95)

        true, found, found_after, right, right_after = images.sum(0).T
        drop = right / (true + found - right) - right_after / (true + found_after - right_after)
        title = f"mean IoU, {classes} classes, each but the first in {share:.0%} of images"
        yield Case(title=title, truth=float(drop.mean()), draw=draw)


def detection_cases(only: str) -> Iterator[Case]:
    """Yield the cases of metrics of detections whose titles hold ``only``."""
    for detector in _DETECTORS:
        titles = {
            metric: f"{metric.label}, {plural(detector.classes, 'class', 'classes')}, {detector.about}"
            for metric in _METRICS
        }
        wanted = [metric for metric, title in titles.items() if only in title]
        records = _records([*wanted, OBJECTS], detector) if wanted else {}
        losing = float(np.mean([there > same for there, _, same in records[OBJECTS][1]])) if wanted else math.nan
        for metric in wanted:
            before, after = records[metric]
            truth = _expected(metric, before, after)
            yield Case(title=titles[metric], truth=truth, losing=losing, draw=_drawing(metric, before, after))


def _drawing(metric: DetectionRecordMetric, before: list[Record], after: list[Record]) -> Draw:
    return lambda generator, count: metric.interval(
        packed_moments(before, after, generator.integers(0, len(before), count)), 0.95
    )


def _records(
    metrics: Sequence[DetectionRecordMetric], detector: Detector
) -> dict[DetectionRecordMetric, tuple[list[Record], list[Record]]]:
    """Return the records before and after of a population of images, by metric."""
    generator = np.random.default_rng(0)
    found: dict[DetectionRecordMetric, tuple[list[Record], list[Record]]] = {metric: ([], []) for metric in metrics}
    likely = 1 / np.arange(1, detector.classes + 1)
    for _ in range(detector.population):
        number = int(generator.integers(detector.objects[0], detector.objects[1] + 1))
        corner, side = generator.uniform(0, detector.side, (number, 2)), generator.uniform(20, 60, (number, 2))
        boxes = np.concatenate([corner, corner + side], axis=1)
        labels = generator.choice(detector.classes, number, p=likely / likely.sum()) + 1
        hard = float(generator.beta(2, 5))  # of the picture: objects of one picture are alike
        seen = generator.random(number) >= 0.1 + 0.4 * hard
        before = detections(boxes[seen], labels[seen], 0.0, 2.0, generator)
        before = _with_mistakes(before, labels, hard, generator)
        after = _compressed(before, (boxes[~seen], labels[~seen]), hard, detector, generator)
        own = Objects.of(before[:, 2:], before[:, 1].astype(np.int64))
        for metric, sides in found.items():
            objects = Objects.of(boxes, labels) if metric.needs_labels else own
            for records, each in zip(sides, (before, after), strict=True):
                records.append(metric.image_record(each, objects))
    return found


def _compressed(
    before: np.ndarray,
    unseen: tuple[np.ndarray, np.ndarray],
    hard: float,
    detector: Detector,
    generator: np.random.Generator,
) -> np.ndarray:
    """Return the detections of the compressed model: some are lost, some of the objects not seen before are found."""
    harder = 0.5 + 1.75 * hard
    losses = 1.0 if detector.hit == 1 else (generator.random() < detector.hit) / detector.hit  # times ``missed``
    kept = generator.random(len(before)) > detector.missed * harder * losses
    new = generator.random(len(unseen[0])) < detector.found * harder
    after = np.concatenate([before[kept], detections(unseen[0][new], unseen[1][new], 0.0, 2.0, generator)])
    after[:, 2:] += generator.normal(0, detector.shift, (len(after), 4))
    after[:, 4:] = np.maximum(after[:, 4:], after[:, 2:4] + 1)
    after[:, 0] = np.clip(after[:, 0] + generator.normal(0, detector.noise, len(after)), SURE_SCORE, 1)
    return after[np.argsort(-after[:, 0])]


def _expected(metric: RecordMetric, before: list[Record], after: list[Record]) -> float:
    """Return the mean drop over samples of images."""
    shares = np.full(len(before), 1 / len(before))
    counts = np.random.default_rng(1).multinomial(_EXPECTED_IMAGES, shares, size=_TRUTH_SAMPLES).astype(float)
    return float((metric.values_of(before, counts) - metric.values_of(after, counts)).mean())


def _with_mistakes(rows: np.ndarray, labels: np.ndarray, hard: float, generator: np.random.Generator) -> np.ndarray:
    """Return detections with others where nothing is, more of them in hard images; most have low scores."""
    number = int(generator.poisson(0.4 + hard))
    corner, side = generator.uniform(0, 200, (number, 2)), generator.uniform(20, 60, (number, 2))
    scores = SURE_SCORE + (1 - SURE_SCORE) * generator.beta(2, 4, number)
    classes = generator.choice(labels, number).astype(float)
    added = np.concatenate([scores[:, None], classes[:, None], corner, corner + side], axis=1)
    found = np.concatenate([rows, added])
    return found[np.argsort(-found[:, 0])]


def covered(case: Case, count: int, samples: int) -> str:
    """Return the share of intervals that hold the truth, and in brackets what a cell of the table says more."""
    generator, below, above = np.random.default_rng([_SEED, count]), 0, 0
    for _ in range(samples):
        low, high = case.draw(generator, count)
        below += high < case.truth
        above += low > case.truth
    losing = "" if math.isnan(case.losing) else f"{case.losing * count:.1f}; "
    ends = ", ".join(f"{missed / samples:.3f}" for missed in (below, above))
    return f"{1 - (below + above) / samples:.3f} ({losing}{ends})"


def main() -> None:
    """Simulate, and keep a row of each population."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--only", default="", help="part of a row's title")
    asked = parser.parse_args()
    for case in itertools.chain(segmentation_cases(), detection_cases(asked.only)):
        if asked.only in case.title:
            cells = {f"{count} images": covered(case, count, asked.samples) for count in NUM_IMAGES}
            keep("dense_coverage", {"figure, population": case.title, "drop": f"{case.truth:.4f}", **cells})


if __name__ == "__main__":
    main()
