"""Raw outputs of detectors, recognised by names, shapes and ranges of values, and decoded to rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.core.errors import UnsupportedModel
from senseapp.metrics.detection.rows import RowKind, assembled

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What a detector said of some images.

    Attributes:
        rows: (N, R, 6 + K); see :mod:`senseapp.metrics.detection.rows`.
        class_boxes: (N, P, K, 4), a box for each class, of the last P rows; None where a row has one box.
        layout: what was recognised, in one sentence.
    """

    rows: Tensor
    class_boxes: Tensor | None = None
    layout: str


def read_heads(raw: object) -> Heads:
    """Return the rows of a raw output; raises UnsupportedModel, with what came, where the layout is unknown."""
    if isinstance(raw, Mapping):
        names = set(raw)
        if {"boxes", "softmax_logits"} <= names:
            return _of_anchors(raw, RowKind.SOFTMAX, "softmax_logits")
        if {"boxes", "sigmoid_logits", "centerness_logits"} <= names:
            return _of_anchors(raw, RowKind.ROOT_OF_PRODUCT, "sigmoid_logits", "centerness_logits")
        if {"boxes", "sigmoid_logits"} <= names:
            return _of_anchors(raw, RowKind.SIGMOID, "sigmoid_logits")
        if {"anchor_boxes", "anchor_logits", "proposal_boxes", "softmax_logits"} <= names:
            return _of_regions(raw)
    raise UnsupportedModel("unknown")


def _of_anchors(raw: Mapping[str, Any], kind: RowKind, logits: str, objects: str = "") -> Heads:
    values = raw[logits]
    extra = raw[objects].squeeze(-1) if objects else None
    rows = assembled(raw["boxes"], kind, logits=values, objects=extra, num_classes=values.shape[2])
    return Heads(rows=rows, layout=f"{rows.shape[1]:,} anchors with {values.shape[2]} classes")


def _of_regions(raw: Mapping[str, Any]) -> Heads:
    import torch

    logits, boxes = raw["softmax_logits"], raw["proposal_boxes"]  # (N, P, K), (N, P, K, 4)
    likeliest = logits[..., 1:].detach().argmax(dim=2) + 1
    own = boxes.gather(2, likeliest[..., None, None].expand(-1, -1, 1, 4))[:, :, 0]
    count = logits.shape[2]
    rows = [
        assembled(raw["anchor_boxes"], RowKind.ANCHOR, logits=None, objects=raw["anchor_logits"], num_classes=count),
        assembled(own, RowKind.PROPOSAL, logits=logits, objects=None, num_classes=count),
    ]
    layout = f"{rows[0].shape[1]:,} anchors and {rows[1].shape[1]:,} regions with {count} classes"
    return Heads(rows=torch.cat(rows, dim=1), class_boxes=boxes, layout=layout)
