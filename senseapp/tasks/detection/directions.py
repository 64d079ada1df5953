"""Two random directions for each image whose inner products estimate how classes and boxes of a detector diverge.

The first is of class logits: v with E[v vᵀ] = F, the Fisher matrix of the class probabilities of each row, so that
½ (v·δz)² averages to the KL divergence of small changes, summed over rows before squaring. The second is of boxes:
±√score / size for each side, so that (v·δz)² averages to Σ score · |δ/size|². Because 1 − IoU grows with |δ/size|
itself, its root is what the box part loses, limited to the sum of scores.

Source: Martens (2020), JMLR 21, section 9, for the second-order term of KL; Hutchinson (1990) for random signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.metrics.detection import DIVERGENCE
from senseapp.metrics.detection.rows import BOX, CLASSES, OBJECT, RowKind, blocks, scores

_LEAST_SIDE = 1.0  # pixels: the size of smaller boxes is no scale
_SHIFT_TO_OVERLAP = 1.6
"""1 − IoU of a small shift, over the root of the mean of |v·δz|² that it gives, for four sides that move alike."""
_SOFTMAX = (RowKind.SOFTMAX, RowKind.SOFTMAX_LAST, RowKind.PROPOSAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxDirections:
    """Directions of rows, (N, R, 6 + K), float32: of class logits, then of boxes.

    Attributes:
        weights: the sum of each image's scores, (N,), float64, which the box part cannot exceed.
    """

    vectors: tuple[Tensor, ...]
    weights: Tensor

    def changes(self, products: Tensor) -> Mapping[str, Tensor]:
        """Return the divergence of each image, (N,); see :class:`~senseapp.tasks.ScanDirections`."""
        classes = products[:, 0].double().square() / 2
        shift = _SHIFT_TO_OVERLAP * self.weights.sqrt() * products[:, 1].double().abs()
        boxes = self.weights * shift / (self.weights + shift).clamp_min(1e-12)
        return {DIVERGENCE.name: classes + boxes}


def choose_directions(rows: Tensor, signs: Tensor) -> BoxDirections:
    """Return directions at ``rows``, (N, R, 6 + K), of the uncompressed model, from ``signs`` ±1 of that shape."""
    classes, boxes = torch.zeros_like(rows), torch.zeros_like(rows)
    weights = rows.new_zeros(len(rows), dtype=torch.float64)
    for kind, place in blocks(rows):
        old, sign = rows[:, place], signs[:, place].to(rows.dtype)
        score = scores(old, kind)
        weights += score.double().sum(dim=1)
        if kind in _SOFTMAX:
            shares = old[..., CLASSES].softmax(dim=-1)
            signed = shares.sqrt() * sign[..., CLASSES]
            classes[:, place, CLASSES] = signed - shares * signed.sum(dim=-1, keepdim=True)
        else:
            used = slice(OBJECT, OBJECT + 1) if kind is RowKind.ANCHOR else slice(OBJECT, None)
            shares = old[..., used].sigmoid()
            classes[:, place, used] = (shares * (1 - shares)).sqrt() * sign[..., used]
        sides = (old[..., 2:4] - old[..., 0:2]).clamp_min(_LEAST_SIDE).repeat(1, 1, 2)  # width, height, width, height
        boxes[:, place, BOX] = score.sqrt()[..., None] / sides * sign[..., BOX]
    return BoxDirections(vectors=(classes.float(), boxes.float()), weights=weights)
