"""Two random directions for each image whose inner products estimate how classes and boxes of a detector diverge.

The first is of class logits: v with E[v vᵀ] = F, the Fisher matrix of the class probabilities of each row, so that
½ (v·δz)² averages to the KL divergence of small changes, summed over rows before squaring. The second is of boxes:
±√score / size for each side, so that (v·δz)² averages to Σ score · |δ/size|². Because 1 − IoU grows with |δ/size|
itself, the box part loses Σ score · |δ/size|, which by Cauchy and Schwarz is at most √(Σ score · Σ score · |δ/size|²),
and so much where all boxes move alike. The sums are over the boxes that a layer moves: a layer in the head of one
feature map moves those of this map only, and the scores of all others would make its loss several times too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from senseapp.metrics.detection import DIVERGENCE
from senseapp.metrics.detection.rows import BOX, CLASSES, OBJECT, SOFTMAX, RowKind, blocks, scores
from senseapp.tasks.directions import fisher_probe

_SHIFT_TO_OVERLAP = 1.6 * math.sqrt(math.pi / 2)
"""1 − IoU of a small shift, over the mean of |v·δz| that it gives, for four sides that move alike.

It is 1.6 times the root of the mean of |v·δz|², of which the mean of |v·δz|, a sum over many boxes, is √(2/π).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxDirections:
    """Directions of rows, (N, R, 6 + K), float32: of class logits, then of boxes.

    Attributes:
        weights: the scores of the boxes that change, (N, R), float64.
    """

    vectors: tuple[Tensor, ...]
    weights: Tensor

    def reaching(self, places: Tensor) -> BoxDirections:
        """Return those of changes that reach the boxes of some rows only."""
        return replace(self, weights=self.weights * places[..., BOX].any(dim=-1))

    def changes(self, products: Tensor) -> Mapping[str, Tensor]:
        """Return the divergence of each image, (N,); see :class:`~senseapp.tasks.ScanDirections`."""
        classes = products[:, 0].double().square() / 2
        most = self.weights.sum(dim=1)  # what the box part loses if no box overlaps what it was
        shift = _SHIFT_TO_OVERLAP * most.sqrt() * products[:, 1].double().abs()
        boxes = most * shift / (most + shift).clamp_min(1e-12)
        return {DIVERGENCE.name: classes + boxes}


def choose_directions(rows: Tensor, signs: Tensor) -> BoxDirections:
    """Return directions at ``rows``, (N, R, 6 + K), of the uncompressed model, from ``signs`` ±1 of that shape."""
    classes, boxes = torch.zeros_like(rows), torch.zeros_like(rows)
    weights = rows.new_zeros(rows.shape[:2], dtype=torch.float64)
    for kind, place in blocks(rows):
        old, sign = rows[:, place], signs[:, place].to(rows.dtype)
        score = scores(old, kind)
        weights[:, place] = score.double()
        if kind in SOFTMAX:
            classes[:, place, CLASSES] = fisher_probe(old[..., CLASSES].softmax(dim=-1), sign[..., CLASSES], dim=-1)
        else:
            used = slice(OBJECT, OBJECT + 1) if kind is RowKind.ANCHOR else slice(OBJECT, None)
            shares = old[..., used].sigmoid()
            classes[:, place, used] = (shares * (1 - shares)).sqrt() * sign[..., used]
        sides = (old[..., 2:4] - old[..., 0:2]).clamp_min(1.0).repeat(1, 1, 2)  # width, height, width, height
        boxes[:, place, BOX] = score.sqrt()[..., None] / sides * sign[..., BOX]
    return BoxDirections(vectors=(classes.float(), boxes.float()), weights=weights)


def directions_of_maps(rows: Tensor) -> tuple[Tensor, ...]:
    """Return ±1 at the boxes of each feature map, and 0 elsewhere, like ``rows``; none where there is one map.

    ``rows`` are (1, R, 6 + K).
    """
    maps = feature_maps(rows)
    if len(maps) == 1:
        return ()
    found = tuple(torch.zeros_like(rows) for _ in maps)
    for each, place in zip(found, maps, strict=True):
        sides = each[:, place, BOX]
        sides += torch.randint(0, 2, sides.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return found


def feature_maps(rows: Tensor) -> list[slice]:
    """Return the places of rows, (1, R, 6 + K), that come from one feature map each.

    Boxes of a map follow each other from its top to its bottom, and those of the next begin at its top again. Rows of
    one kind in any other order, as regions and queries have, count as one map.
    """
    found = []
    for _, place in blocks(rows):
        middle = (rows[0, place, 1] + rows[0, place, 3]).detach().cpu().double() / 2
        low, high = middle.quantile(middle.new_tensor([0.02, 0.98]))  # single boxes may lie anywhere
        begins = ((middle[:-1] - middle[1:]) > (high - low) / 2).nonzero()[:, 0] + 1
        starts = [0, *begins.tolist()] if len(begins) < 12 else [0]  # YOLOv5 has three anchors on each of four
        ends = [*starts[1:], len(middle)]
        found += [slice(place.start + start, place.start + end) for start, end in zip(starts, ends, strict=True)]
    return found
