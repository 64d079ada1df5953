"""Images that a search for int8 files uses: those that fit, and others that judge, screen and choose thresholds."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.data.images import ImageSet, draw
from senseapp.networks.network import Network, in_calls
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.prove.proof_images import ProofImages
from senseapp.records.inputs import HELD_OUT_SHARE
from senseapp.runtimes.base import Runtime

_FITTED_IMAGES = 256  # that ranges, weights and biases are fitted to
_JUDGING_IMAGES = 128  # others, that choose ranges and the nodes in float
_FITTED_SECONDS, _JUDGED_SECONDS, _SCREENED_SECONDS = 8.0, 4.0, 0.5  # of the float file on these images, at most
_FEWEST, _FEWEST_SCREENING = 8, 2  # of these, however long an image takes
_SEED = 1  # of the draw, so that a file is judged on the same images again


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """How many images fit, judge and screen files: fewer where each takes long.

    Attributes:
        fitted: images that ranges, weights and biases are fitted to.
        judging: others, that choose ranges and the nodes in float.
        screening: of all these, that tell which nodes are worth a look.
        notes: sentences on small amounts.
    """

    fitted: int
    judging: int
    screening: int
    notes: tuple[str, ...]

    @classmethod
    def of(cls, network: Network, evaluator: ScheduleEvaluator) -> Amounts:
        """Return amounts for a float file, by the quickest of a few calls on one image."""
        image = in_calls_of(network, evaluator, evaluator.images.curves.subset([0]))[0]
        spent = []
        for _ in range(3):  # whose quickest says how long
            started = time.perf_counter()
            network.run(image)
            spent.append(time.perf_counter() - started)
        each = min(spent) / len(image)
        fitted, judging, screening = (
            max(fewest, min(most, int(seconds / each)))
            for seconds, fewest, most in (
                (_FITTED_SECONDS, _FEWEST, _FITTED_IMAGES),
                (_JUDGED_SECONDS, _FEWEST, _JUDGING_IMAGES),
                (_SCREENED_SECONDS, _FEWEST_SCREENING, 96),  # of all these, that tell which nodes are worth a look
            )
        )
        few = (
            f"An image takes {each:.2g} s in float, so ranges are fitted to at most {fitted} images and files compared "
            f"on at most {judging}."
        )
        return cls(fitted=fitted, judging=judging, screening=screening, notes=(few,) if judging == _FEWEST else ())


def with_held_out(evaluator: ScheduleEvaluator) -> ScheduleEvaluator:
    """Return the same with a share of its images held out, where the run held out none and has some to spare."""
    curves, kept = evaluator.images.curves, int(HELD_OUT_SHARE * len(evaluator.images.curves))
    if evaluator.images.held_out or kept < 4:  # fewer say nothing of a file
        return evaluator
    order: list[int] = torch.randperm(len(curves), generator=torch.Generator().manual_seed(_SEED)).tolist()
    found = copy.copy(evaluator)
    found.images = ProofImages(
        curves=curves.subset(sorted(order[kept:])),
        proof=curves.subset(sorted(order[:kept])),
        note=f"Measured on {kept} of the run's {len(curves)} images, which the file was not made with.",
    )
    return found


def fitted_and_others(
    evaluator: ScheduleEvaluator, *, fitted: int = _FITTED_IMAGES, judging: int = _JUDGING_IMAGES
) -> tuple[ImageSet, ImageSet]:
    """Return images of the curves: those that ranges and weights are fitted to, and those that judge."""
    curves = evaluator.images.curves
    generator = torch.Generator().manual_seed(evaluator.result.spec.sensitivity.seed)
    order: list[int] = torch.randperm(len(curves), generator=generator).tolist()
    judging = min(len(curves) // 2, judging) if len(curves) >= 32 else 0  # with fewer, all do both
    fitting = curves.subset(order[judging:][:fitted])
    return fitting, curves.subset(order[:judging]) if judging else fitting


def in_calls_of(network: Network, evaluator: ScheduleEvaluator, images: ImageSet) -> list[Tensor]:
    """Return images in batches that the network runs at once."""
    batches = evaluator.dense.arranged(images, 0, len(images))
    return [part for batch in batches for part in in_calls(network, batch.cpu())]  # runtimes run there


def half_of_each(first: Sequence[Tensor], second: Sequence[Tensor], count: int) -> Tensor:
    """Return ``count`` images, half of them of each of two sets of batches where both have so many, all different."""
    one, other = torch.cat(tuple(first)), torch.cat(tuple(second))
    if torch.equal(one, other):
        return one[:count]
    of_other = min(count // 2, len(other))
    return torch.cat((one[: count - of_other], other[:of_other]))


def score_thresholds(evaluator: ScheduleEvaluator, runtime: Runtime, files: Mapping[str, bytes]) -> dict[str, float]:
    """Return the threshold of each of ``files``; empty for tasks without one.

    It has the best F1 against labels. Without these, a file is compared with what the ``original`` finds from the usual
    threshold on.
    """
    task = evaluator.task
    if not task.has_score_threshold:
        return {}
    evaluator.progress("Choosing the threshold of scores")
    original, curves = runtime.open(files["original"]), evaluator.images.curves
    amounts = Amounts.of(original, evaluator)
    count = min(len(curves), amounts.fitted + amounts.judging)
    images = draw(curves, count, evaluator.result.spec.sensitivity.seed)
    judged_on, classes = JudgingImages.of_set(images, evaluator.dense), evaluator.profile.num_classes
    judge = Judge(task, judged_on, original, num_outputs=classes)
    before, found = judge.baseline.outputs, dict[str, float]()
    for name, content in files.items():
        after = before if name == "original" else judge.judged(runtime.open(content)).outputs
        truth = None if name == "original" else before
        found[name] = task.score_threshold(after, images.labels, truth)
    return found
