"""Thresholds of scores of delivered files, each chosen for its file on the images that files are made with."""

from __future__ import annotations

from collections.abc import Mapping

from senseapp.data.images import draw
from senseapp.metrics import METRICS
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.prove.search_images import Amounts
from senseapp.runtimes.base import Runtime


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


def keeps_nothing(judged: Judgement) -> bool:
    """Return whether a network keeps none of the reference's answers, where that has some."""
    if judged.judge.task.baseline_note(judged.judge.baseline.outputs):
        return False
    kept = (each for each in judged.changes if METRICS[each.metric].primary and not METRICS[each.metric].needs_labels)
    return any(METRICS[each.metric].is_share and each.value == 0 for each in kept)
