"""Images that a search for int8 files uses: those that fit, and others that judge, screen and choose thresholds."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from senseapp.data.images import ImageSet, draw, draw_order
from senseapp.networks.network import Network, in_calls
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.records.inputs import HELD_OUT_SHARE
from senseapp.runtimes.base import Runtime

_FITTED, _FITTED_SECONDS = 256, 8.0  # images that fit at most, and what the float file may take on them
_JUDGING, _JUDGED_SECONDS = 128, 4.0  # the same of those that choose ranges and the nodes in float
_SCREENING, _SCREENED_SECONDS = 96, 0.5  # of these, those that tell which nodes are worth a look
_FEWEST, _FEWEST_SCREENING = 8, 2  # of these, however long an image takes
_SEED = 1  # of the draw, so that a file is judged on the same images again


class SearchImages:
    """Images of the curves for a search for files, in calls of the float network; fewer where each takes long.

    Attributes:
        fitted: batches (N, C, H, W) that ranges, weights and biases are fitted to.
        judging: batches that choose ranges and the nodes in float; the same with fewer than 32 images.
        judge: compares networks with the float one on the latter.
        notes: sentences on small amounts.
    """

    def __init__(self, evaluator: ScheduleEvaluator, network: Network) -> None:
        self._evaluator, self._network = evaluator, network
        each = _seconds_of_image(evaluator, network)
        fitted = _affordable(each, _FITTED_SECONDS, _FITTED)
        judging = _affordable(each, _JUDGED_SECONDS, _JUDGING)
        self._screening = _affordable(each, _SCREENED_SECONDS, _SCREENING, fewest=_FEWEST_SCREENING)
        few = (
            f"An image takes {each:.2g} s in float, so ranges are fitted to at most {fitted} images and files compared "
            f"on at most {judging}."
        )
        self.notes = (few,) if judging == _FEWEST else ()
        curves = evaluator.images.curves
        order = draw_order(len(curves), len(curves), evaluator.result.spec.sensitivity.seed)
        judging = min(len(curves) // 2, judging) if len(curves) >= 32 else 0
        self.fitted = calls_of(evaluator, network, curves.subset(order[judging:][:fitted]))
        self.judging = calls_of(evaluator, network, curves.subset(order[:judging])) if judging else self.fitted
        self.judge = self._judge_of(self.judging)

    def rough_damage(self, network: Network) -> float:
        """Return the typical damage of a network on few of the images that judge."""
        return self._screen.judged(network).typical_damage

    @cached_property
    def _screen(self) -> Judge:
        return self._judge_of(in_calls(self._network, torch.cat(self.judging)[: self._screening]))

    def _judge_of(self, batches: Sequence[Tensor]) -> Judge:
        """Return what compares with the network on ``batches``, without labels."""
        images, outputs = JudgingImages.of_batches(batches), self._evaluator.profile.num_classes
        return Judge(self._evaluator.task, images, self._network, num_outputs=outputs)


def _affordable(each: float, seconds: float, most: int, *, fewest: int = _FEWEST) -> int:
    """Return how many images are looked at, where one takes ``each`` seconds."""
    return max(fewest, min(most, int(seconds / each)))


def _seconds_of_image(evaluator: ScheduleEvaluator, network: Network) -> float:
    """Return the seconds of one image in the quickest of a few calls."""
    image = calls_of(evaluator, network, evaluator.images.curves.subset([0]))[0]
    spent = []
    for _ in range(3):  # whose quickest says how long
        started = time.perf_counter()
        network.run(image)
        spent.append(time.perf_counter() - started)
    return min(spent) / len(image)


def calls_of(evaluator: ScheduleEvaluator, network: Network, images: ImageSet) -> list[Tensor]:
    """Return images in batches that the network runs at once, on the processor."""
    batches = evaluator.dense.arranged(images, 0, len(images))
    return [part for batch in batches for part in in_calls(network, batch.cpu())]


def with_held_out(evaluator: ScheduleEvaluator) -> ScheduleEvaluator:
    """Return the same with a share of its images kept from fitting, where the run held out none and has some to spare.

    All files of such a run are measured on this share.
    """
    curves, kept = evaluator.images.curves, int(HELD_OUT_SHARE * len(evaluator.images.curves))
    if evaluator.images.are_apart or kept < 4:  # fewer say nothing of a file
        return evaluator
    order = draw_order(len(curves), len(curves), _SEED)
    images = ProofImages(
        curves=curves.subset(sorted(order[kept:])),
        proof=curves.subset(sorted(order[:kept])),
        note=f"Measured on {kept} of the run's {len(curves)} images; nothing was fitted to these.",
        measured=True,
    )
    return replace(evaluator, images=images)


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
    count = _affordable(_seconds_of_image(evaluator, original), _FITTED_SECONDS + _JUDGED_SECONDS, _FITTED + _JUDGING)
    images = draw(curves, min(len(curves), count), evaluator.result.spec.sensitivity.seed)
    judged_on, classes = JudgingImages.of_set(images, evaluator.dense), evaluator.profile.num_classes
    judge = Judge(task, judged_on, original, num_outputs=classes)
    before = judge.baseline.outputs
    found = {"original": task.score_threshold(before, images.labels)}
    for name in files.keys() - found:
        after = judge.judged(runtime.open(files[name])).outputs
        found[name] = task.score_threshold(after, images.labels, before)
    return found
