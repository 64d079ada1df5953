"""What the toy detection compares: boxes (N, cells, 4), logits (N, cells), and the detections of each image, (n, 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.metrics import Metric, powers
from senseapp.metrics.predictions import Columns
from senseapp.metrics.records import Record, RecordMetric
from tests.toy_rectangles import SIDE

if TYPE_CHECKING:
    from torch import Tensor

_WIDTH = 0.1
"""How far a box may move: a Gaussian distribution of this width around each side, as a share of the image's side."""
_LEAST_SCORE, _SAME, _OVERLAP = 0.3, 0.3, 0.5


def predictions_of(output: Tensor, labels: Sequence[Tensor]) -> Columns:
    """Return the parts of an output, (N, cells, 5), with what is left of it for each image: score, class, box."""
    boxes, logits = output[..., :4], output[..., 4]
    return Columns(
        parts={
            "boxes": boxes,
            "logits": logits,
            "detections": tuple(_detected(*each) for each in zip(boxes.float(), logits.float(), labels, strict=True)),
        }
    )


def _detected(boxes: Tensor, logits: Tensor, classes: Tensor) -> Tensor:
    import torch
    from torchvision.ops import batched_nms

    scores = logits.sigmoid()
    found = (scores >= _LEAST_SCORE).nonzero().flatten()
    kept = found[batched_nms(boxes[found], scores[found], classes[found], _SAME)]
    return torch.cat([scores[kept, None], classes[kept, None].float(), boxes[kept]], 1)


@dataclass(frozen=True, kw_only=True)
class BoxDivergence(Metric):
    """The mean over cells of the KL divergence of classes and, weighted by the score, of boxes."""

    least_loss: float = 0.0

    def terms(self, baseline_output: Columns, output: Columns, targets: Any) -> tuple[Tensor, ...]:
        divergence = _divergence(
            *(side.parts[name] for side in (baseline_output, output) for name in ("logits", "boxes"))
        )
        return powers(divergence.new_zeros(divergence.shape), divergence)


def _divergence(logits: Any, boxes: Any, new_logits: Any, new_boxes: Any) -> Tensor:
    import torch.nn.functional as F

    probability = logits.sigmoid()
    classes = F.softplus(new_logits) - F.softplus(logits) - (new_logits - logits) * probability
    moved = (new_boxes - boxes).square().sum(2) / (2 * _WIDTH**2)
    found: Tensor = (classes + probability * moved).mean(1).clamp_min(0)
    return found


@dataclass(frozen=True, kw_only=True)
class AveragePrecision(RecordMetric):
    """The area under precision over recall of all detections, right where class and half of the box are."""

    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        from torchvision.ops import box_iou

        found, boxes, labels = (
            predictions.parts["detections"][index].float(),
            targets[index]["boxes"] / SIDE,
            targets[index]["labels"],
        )
        free, numbers = [True] * len(boxes), [float(len(boxes))]
        overlaps = box_iou(found[:, 2:], boxes)
        for place in found[:, 0].argsort(descending=True).tolist():
            fits = [
                (float(overlaps[place, each]), each)
                for each in range(len(boxes))
                if free[each] and labels[each] == found[place, 1] and overlaps[place, each] >= _OVERLAP
            ]
            if fits:
                free[max(fits)[1]] = False
            numbers += [float(found[place, 0]), float(bool(fits))]
        return numbers

    def value_of(self, records: Sequence[Record]) -> float:
        ranked = sorted(
            ((score, right) for each in records for score, right in zip(each[1::2], each[2::2], strict=True)),
            reverse=True,
        )
        true, area, right_so_far = sum(each[0] for each in records), 0.0, 0.0
        for rank, (_, right) in enumerate(ranked, 1):
            right_so_far += right
            area += right * right_so_far / rank
        return area / true if true else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxDirections:
    """Two random directions whose squares estimate the divergence of all cells."""

    vectors: tuple[Tensor, ...]

    def changes(self, products: Tensor) -> Mapping[str, Tensor]:
        return {DIVERGENCE.name: products.double().square().mean(1) / 2}


def directions_of(output: Tensor, signs: Tensor) -> BoxDirections:
    """Return v with random signs, √(p (1 - p)) for logits and √p / width for boxes, over the root of all cells."""
    import torch

    probability = output[..., 4:].double().sigmoid()
    boxes = (probability.sqrt() / _WIDTH).expand(*output.shape[:2], 4)
    size = torch.cat([boxes, (probability * (1 - probability)).sqrt()], 2) / output.shape[1] ** 0.5
    return BoxDirections(vectors=tuple((size * each).float() for each in (signs, signs.roll(1, dims=1))))


DIVERGENCE = BoxDivergence(
    name="box_kl",
    task="toy_detection",
    label="KL divergence per cell",
    change_title="KL divergence per cell",
    help="How far classes and boxes move. Needs no labels.",
    change_unit="nats",
    value_unit="nats",
    notable=0.01,
    higher_is_better=False,
    divergence=True,
    primary=True,
)
AP = AveragePrecision(
    name="toy_ap",
    task="toy_detection",
    label="Average precision",
    change_title="Drop in average precision",
    help="Precision over recall of boxes of which half is right.",
    value_unit="%",
    change_unit="points",
    notable=0.01,
    needs_labels=True,
    primary=True,
    proof_only=True,
)
