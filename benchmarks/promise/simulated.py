"""Simulated deployments: a goal, files with known losses, and the product's own decision on held-out images.

Each deployment draws a promised loss and files from mild to strong, whose expected losses lie around it. All files run
on the same held-out images, and hard images are hard for all. :func:`senseapp.records.candidate.recommended` then
decides as it does for a page. The promise is broken where the file that it offers loses more than promised on new
images: where its expected loss is larger. An oracle offers the strongest file whose expected loss is within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.dense.coverage import mean_iou_moments
from senseapp.metrics import MetricChange, change_of
from senseapp.prove.decision import decision
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.prove import Promised
from senseapp.prove.recommend import as_likely_as_not, likely_to_pass
from senseapp.records.candidate import Candidate, own_bounds
from senseapp.records.deployment import Median, RuntimeFigures
from senseapp.records.promise import Promise, kept, sequence_after

Floats = NDArray[np.float64]
GOALS = (0.01, 0.02, 0.03, 0.05, 0.1)
_SHARED = 0.8  # of the images: hard for all files alike
_CURVE_IMAGES = 128
_POPULATION = 3000
_TIME = Median(value=0.01, low=0.01, high=0.01)
_ORIGINAL = RuntimeFigures(
    changes=(), seconds=_TIME, time_ratio=Median(value=1.0, low=1.0, high=1.0), file_bytes=1_000_000
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files of one network, from mild to strong.

    Attributes:
        losses: expected on new images, (files,).
        measured: returns the change of each file on so many images, all on the same.
    """

    losses: Floats
    measured: Callable[[int], list[MetricChange]]


Family = Callable[[np.random.Generator], tuple[float, Files]]
"""Returns a promised loss and files."""


@dataclass(slots=True)
class Tally:
    """What became of deployments."""

    deployments: int = 0
    possible: int = 0
    offered: int = 0
    broken: int = 0
    any_broken: int = 0
    naive_broken: int = 0
    savings: list[float] = field(default_factory=list)

    def row(self, name: str, images: int) -> dict[str, object]:
        """Return it as a row of a table."""
        share = self.offered / self.possible if self.possible else float("nan")
        saved = float(np.mean(self.savings)) if self.savings else float("nan")
        return {
            "files judged by, and how made": name,
            "held-out images": images,
            "deployments": self.deployments,
            "broken, had the measured loss decided": f"{100 * self.naive_broken / self.deployments:.1f} %",
            "broken": f"{100 * self.broken / self.deployments:.1f} %",
            "any file that was said to keep it": f"{100 * self.any_broken / self.deployments:.1f} %",
            "offered, of those an oracle offers": f"{share:.2f}",
            "saved, of what the oracle saves": f"{saved:.2f}",
        }


def ladder(rng: np.random.Generator, goal: float, most: float = 0.6) -> Floats:
    """Return expected losses from mild to strong, around ``goal``."""
    count = int(rng.integers(2, 11))
    mildest = goal * np.exp(rng.uniform(np.log(0.05), np.log(1.5)))
    return np.minimum(most, mildest * np.cumprod(np.r_[1.0, 1 + rng.uniform(0.2, 1.5, count - 1)]))


def _hardness(rng: np.random.Generator, files: int, images: int) -> Floats:
    """Return numbers from 0 to 1, (files, images), that are the same for all files on most images."""
    shared, own = rng.random(images), rng.random((files, images))
    return np.where(rng.random(images) < _SHARED, shared, own)


def answers(rng: np.random.Generator) -> tuple[float, Files]:
    """Return files whose answers change or not."""
    goal = float(rng.choice(GOALS))
    losses = ladder(rng, goal)

    def measured(images: int) -> list[MetricChange]:
        changed = (_hardness(rng, len(losses), images) < losses[:, None]).sum(axis=1)
        return [change_of("agreement", (images, images, *[float(count)] * 3)) for count in changed]

    return goal, Files(losses=losses, measured=measured)


def right_answers(rng: np.random.Generator) -> tuple[float, Files]:
    """Return files that get some images wrong, and others right that were wrong before."""
    goal = float(rng.choice(GOALS))
    losses, back = ladder(rng, goal, 0.3), rng.uniform(0, 0.8)

    def measured(images: int) -> list[MetricChange]:
        hard = _hardness(rng, len(losses), images)
        worse = (hard < ((1 + back) * losses)[:, None]).sum(axis=1)
        better = (hard > 1 - (back * losses)[:, None]).sum(axis=1)  # others: the sum of both shares is below 1
        return [
            change_of("top1", (images, 0.8 * images, float(lost - won), float(lost + won), float(lost - won)))
            for lost, won in zip(worse, better, strict=True)
        ]

    return goal, Files(losses=losses, measured=measured)


def labels(rng: np.random.Generator) -> tuple[float, Files]:
    """Return files that change some of twenty labels of each image."""
    goal, mean, count = float(rng.choice(GOALS[:4])), 0.3 / 3.3, 20
    losses = ladder(rng, goal, mean)

    def measured(images: int) -> list[MetricChange]:
        hard = rng.beta(0.3, 3.0, images)  # of expectation ``mean``
        shares = rng.binomial(count, hard * (losses / mean)[:, None]) / count  # (files, images)
        return [
            change_of("label_agreement", (images, images, *(float((each**power).sum()) for power in (1, 2, 3))))
            for each in shares
        ]

    return goal, Files(losses=losses, measured=measured)


def _of_population(metric: str, files: int, moments: Callable[[int, NDArray[np.int64]], tuple[float, ...]]) -> Family:
    """Return ``files`` that were run on a population, with the moments of one of them on given images."""
    everything = np.arange(_POPULATION)
    losses = np.array([change_of(metric, moments(file, everything)).delta for file in range(files)])

    def family(rng: np.random.Generator) -> tuple[float, Files]:
        def measured(images: int) -> list[MetricChange]:
            drawn = rng.integers(0, _POPULATION, images)
            return [change_of(metric, moments(file, drawn)) for file in range(files)]

        goal = float(losses[int(rng.integers(0, files))] * rng.uniform(0.8, 2.0))
        return goal, Files(losses=losses, measured=measured)

    return family


def masks(seed: int) -> Family:
    """Return files whose pixels change, judged by mean IoU: they shrink regions, and lose all of some images."""
    rng, classes, files = np.random.default_rng(seed), 8, 6
    present = rng.random((_POPULATION, classes)) < 0.3
    true = np.where(present, rng.uniform(50, 400, present.shape), 0.0)
    right, extra = true * rng.beta(20, 2, true.shape), np.where(present, rng.uniform(0, 20, true.shape), 0.0)
    hard = rng.random(_POPULATION)
    sums = []
    for place in range(files):
        share = 0.004 * 1.7**place
        left = np.where(hard < share, 0.0, 1 - rng.beta(1, 100 / 1.5**place, _POPULATION))[:, None]
        sums.append(np.stack([true, right + extra, left * (right + extra), right, left * right], axis=2))

    def moments(file: int, images: NDArray[np.int64]) -> tuple[float, ...]:
        return mean_iou_moments(sums[file][images])

    return _of_population("miou", files, moments)


def objects(seed: int) -> Family:
    """Return files that lose some of the original's objects, judged by F1, whose bound takes a bootstrap."""
    rng, files = np.random.default_rng(seed), 5
    there = rng.integers(1, 7, _POPULATION)
    hard = rng.beta(0.5, 4, _POPULATION)
    found = [there - rng.binomial(there, np.minimum(1, hard * 0.06 * 1.8**place)) for place in range(files)]

    def moments(file: int, images: NDArray[np.int64]) -> tuple[float, ...]:
        rows = [(3.0, a, a, a, 3.0, a, b, b) for a, b in zip(there[images], found[file][images], strict=True)]
        return (float(len(images)), *(float(number) for row in rows for number in row))

    return _of_population("objects_f1", files, moments)


def candidate(change: MetricChange, place: int, tried: int = 1) -> Candidate:
    """Return the file at ``place`` of a ladder: stronger ones are smaller."""
    figures = RuntimeFigures(
        changes=(change,), seconds=_TIME, time_ratio=_ORIGINAL.time_ratio, file_bytes=500_000 - 10_000 * place
    )
    return Candidate(
        file=f"deployed-{place:016x}.onnx",
        form="int8",
        schedule=None,
        reconstruction="",
        figures=figures,
        original=_ORIGINAL,
        held_out=True,
        tried=tried,
        bounds=own_bounds((change,)),
    )


def mild_to_strong(rng: np.random.Generator, files: Files, promise: Promise, images: int) -> list[Candidate]:
    """Return all files, made from mild to strong, as the files of one delivery are."""
    return [candidate(change, place) for place, change in enumerate(files.measured(images))]


def by_chance(rng: np.random.Generator, files: Files, promise: Promise, images: int) -> list[Candidate]:
    """Return all files, made in a random order."""
    made = mild_to_strong(rng, files, promise, images)
    return [made[place] for place in rng.permutation(len(made))]


def found_by_search(rng: np.random.Generator, files: Files, promise: Promise, images: int) -> list[Candidate]:
    """Return the file that a search ends at: the strongest that few other images let pass, then milder ones."""
    evaluator = SimpleNamespace(images=SimpleNamespace(proof=range(images), held_out=True))
    promised = Promised(promise=promise, tests=sequence_after([], promise))
    allowed = likely_to_pass(cast(ScheduleEvaluator, evaluator), promised)
    seen, judged = files.measured(_CURVE_IMAGES), files.measured(images)
    held = [place for place, change in enumerate(seen) if as_likely_as_not(change) <= allowed] or [0]
    for tried, place in enumerate(held[::-1][:6], start=1):
        if promised.tested(cast(ScheduleEvaluator, evaluator), (judged[place],)).holds:
            return [candidate(judged[place], place, tried)]
    return []


Maker = Callable[[np.random.Generator, Files, Promise, int], list[Candidate]]


def simulate(
    family: Family, *, images: int, deployments: int, seed: int = 0, makers: Sequence[Maker] = (mild_to_strong,)
) -> Iterator[Tally]:
    """Yield what became of ``deployments``, judged on so many held-out ``images``, for each way of making files."""
    for maker in makers:
        rng, tally = np.random.default_rng(seed), Tally()
        for _ in range(deployments):
            goal, files = family(rng)
            promise = Promise(most=goal)
            made = maker(rng, files, promise, images)
            count(tally, files.losses, made, promise)
        yield tally


def count(tally: Tally, losses: Floats, made: Sequence[Candidate], promise: Promise) -> None:
    """Add one deployment to ``tally``."""
    goal = promise.most
    places = {each.file: int(each.file[9:25], 16) for each in made}
    best = decision(made, "smaller", goal, promise).choice
    naive = decision(made, "smaller", goal).choice
    good = [place for place, loss in enumerate(losses) if loss <= goal]
    tally.deployments += 1
    tally.possible += bool(good)
    tally.offered += bool(good) and best is not None
    tally.broken += best is not None and losses[places[best.file]] > goal
    tally.any_broken += any(losses[places[each.file]] > goal for each in kept(made, promise))
    tally.naive_broken += naive is not None and losses[places[naive.file]] > goal
    if good and best is not None:
        tally.savings.append((1 + min(places[best.file], good[-1])) / (1 + good[-1]))
