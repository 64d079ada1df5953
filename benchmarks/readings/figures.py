"""The right figure of a pair, from what its network computes in torch: no code of senseapp has a part in it.

mAP@.5:.95 is pycocotools' (scores from .02, non-maximum suppression by class at IoU .5, 100 boxes).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor, nn
from torchvision.ops import batched_nms

from benchmarks.readings.cases import Case, scores_of
from benchmarks.readings.labels import annotated
from benchmarks.readings.networks import Scene, placed


def right_figure(case: Case, network: nn.Module, images: Tensor, scenes: Sequence[Scene]) -> float:
    """Return the figure of ``network`` on ``images``, which are those of ``scenes`` as it takes them."""
    found = network(images)
    if case.task == "classification":
        return float((found.argmax(1).numpy() == [int(each[1][0, 0]) for each in scenes]).mean())
    if case.task == "segmentation":
        answers, truth = found.argmax(1).numpy(), np.stack([each[2] for each in scenes])
        return float(np.mean([((answers == c) & (truth == c)).sum() / ((answers == c) | (truth == c)).sum()
                              for c in np.unique(truth)]))  # fmt: skip
    return _average_precision(case, found, scenes)


def _average_precision(case: Case, found: tuple[Tensor, Tensor, Tensor], scenes: Sequence[Scene]) -> float:
    """Return mAP@.5:.95 of what a detector finds."""
    boxes, scores = found[0], scores_of(case.head, *found[1:])
    truth, guesses = [], []
    for index, each in enumerate(scenes):
        rows = annotated(case, each)
        truth += [(index, place + 1, *box[:2], *(box[2:] - box[:2])) for place, box in rows]
        guesses += _detections(case, index, boxes[index], scores[index])
    return _evaluated(truth, guesses, len(scenes))


def _detections(case: Case, index: int, boxes: Tensor, scores: Tensor) -> list[tuple[float, ...]]:
    """Return image, class, left, top, width, height in the picture, and score of each detection."""
    anchors, classes = (scores >= 0.02).nonzero(as_tuple=True)
    kept = boxes.clamp(0, case.side)[anchors], scores[anchors, classes], classes
    chosen = batched_nms(*kept, 0.5)[:100]
    left, top, width, height = placed(case.size, case.side, case.preparation.letterbox)
    found = []
    for box, score, label in zip(*(each[chosen].tolist() for each in kept), strict=True):
        xs = [min(max((side - left) / width, 0), 1) * case.size[0] for side in box[::2]]
        ys = [min(max((side - top) / height, 0), 1) * case.size[1] for side in box[1::2]]
        found.append((index, label + 1, xs[0], ys[0], xs[1] - xs[0], ys[1] - ys[0], score))
    return found


def _evaluated(truth: list[tuple[float, ...]], guesses: list[tuple[float, ...]], pictures: int) -> float:
    if not guesses:
        return 0.0
    known = COCO()
    known.dataset = {
        "info": {}, "images": [{"id": index} for index in range(pictures)],
        "categories": [{"id": number} for number in {row[1] for row in truth}],
        "annotations": [
            {"id": at + 1, "image_id": row[0], "category_id": row[1], "bbox": list(row[2:]), "iscrowd": 0,
             "area": row[4] * row[5]}
            for at, row in enumerate(truth)
        ],
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        known.createIndex()
        found = known.loadRes([
            {"image_id": row[0], "category_id": row[1], "bbox": list(row[2:6]), "score": row[6]} for row in guesses
        ])  # fmt: skip
        judge = COCOeval(known, found, "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return float(judge.stats[0])
