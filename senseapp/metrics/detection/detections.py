"""Detections of an image: candidates that are left after thresholds and non-maximum suppression, class by class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from senseapp.metrics.detection.matching import Floats, Objects, match_image
from senseapp.metrics.detection.rows import BOX, RowKind, blocks, class_scores, scores
from senseapp.metrics.detection.rules import FOUND, LEAST_SCORE, MOST_DETECTIONS, SAME_BOX, SURE_SCORE

if TYPE_CHECKING:
    from torch import Tensor

_MOST_CANDIDATES = 1000  # pairs before suppression, as torchvision's RetinaNet and RPN take by level


def candidates_of(rows: Tensor, class_boxes: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return the likeliest pairs of box and class of each image, (n, 6) as score, class and box, highest score first.

    Args:
        rows: all rows of the images, (N, R, 6 + K).
        class_boxes: (N, P, K, 4), the box of each class, of the last P rows; elsewhere a row has one box.
    """
    import torch

    parts = []
    for kind, place in blocks(rows):
        if kind is not RowKind.ANCHOR:
            boxes = class_boxes if kind is RowKind.PROPOSAL else None
            parts.append(_likeliest(rows[:, place], kind, boxes))
    found = torch.cat(parts, dim=1)
    found = found.gather(1, found[..., :1].argsort(dim=1, descending=True, stable=True).expand_as(found))
    return tuple(each[each[:, 0] > LEAST_SCORE][:_MOST_CANDIDATES] for each in found)


def _likeliest(rows: Tensor, kind: RowKind, class_boxes: Tensor | None) -> Tensor:
    import torch

    most = min(_MOST_CANDIDATES, rows.shape[1])
    chosen = scores(rows, kind).topk(most, dim=1).indices  # they hold the likeliest pairs
    rows = rows.gather(1, chosen[..., None].expand(-1, -1, rows.shape[2]))
    shares = class_scores(rows, kind)  # (N, most, K)
    values, flat = shares.flatten(1).topk(min(_MOST_CANDIDATES, shares[0].numel()), dim=1)
    row, label = flat // shares.shape[2], flat % shares.shape[2]
    boxes = rows[..., BOX].gather(1, row[..., None].expand(-1, -1, 4))
    if class_boxes is not None:
        images = torch.arange(len(rows), device=rows.device)[:, None]
        boxes = class_boxes[images, chosen.gather(1, row), label]
    return torch.cat([values[..., None], label[..., None].to(values.dtype), boxes], dim=2)


def detections_of(candidates: Tensor, least_score: float = LEAST_SCORE) -> Floats:
    """Return the detections of one image, (n, 6) as score, class and box, highest score first."""
    from torchvision.ops import batched_nms

    found = candidates[candidates[:, 0] >= least_score].float()
    kept = batched_nms(found[:, 2:], found[:, 0], found[:, 1].long(), SAME_BOX)[:MOST_DETECTIONS]
    result: Floats = found[kept].double().cpu().numpy()
    return result


def objects_of(detections: Floats, least_score: float = SURE_SCORE) -> Objects:
    """Return the sure detections of one image as objects to be found."""
    sure = detections[detections[:, 0] >= least_score]
    return Objects.of(sure[:, 2:], sure[:, 1].astype(np.int64))


def sure_detections(predictions: Mapping[str, Any]) -> Floats:
    """Return the detections of one image with a sure score: from :data:`SURE_SCORE` on, or the network's own."""
    return detections_of(predictions["candidates"], float(predictions.get("sure_score", SURE_SCORE)))


def best_threshold(images: Iterable[tuple[Floats, Objects]]) -> float:
    """Return the score from which detections have the best F1 against objects; the usual one where none is found.

    It is midway between two scores. Detections are matched in the order of their scores, so that one match tells F1
    for every threshold.
    """
    matched = [each for found, objects in images for each in match_image(found, objects, thresholds=(FOUND,))]
    sure = np.concatenate([np.zeros(0), *(each.scores[~each.ignored[0]] for each in matched)])
    right = np.concatenate([np.zeros(0), *(each.right[0][~each.ignored[0]] for each in matched)])
    order = np.argsort(-sure, kind="stable")
    sure, hits = np.append(sure[order], LEAST_SCORE), np.cumsum(right[order])
    if not hits.any():
        return SURE_SCORE
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + sum(each.num_objects for each in matched))
    best = int(np.where(sure[:-1] > sure[1:], f1, 0.0).argmax())
    return float(sure[best] + sure[best + 1]) / 2
