"""Raw outputs of detectors, recognised by names, shapes and ranges of values, and decoded to rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from senseapp.core.errors import UnsupportedModel
from senseapp.metrics.detection.rows import RowKind, assembled
from senseapp.tasks.base import UsualInput
from senseapp.tasks.detection.heads.layout import HeadLayout
from senseapp.tasks.detection.heads.recognition import decode, recognise

if TYPE_CHECKING:
    from torch import Tensor


_ROWS = "rows"
_YOLO = UsualInput(family="YOLOv5 to v11", to_bytes=False)
_USUAL_INPUTS = {
    "grid": UsualInput(family="YOLOX", to_bytes=True, channel_order="bgr"),
    "centre maps of logarithms": UsualInput(family="CenterFace", to_bytes=True),
    **dict.fromkeys(("distributions", "maps of distributions", "anchored maps"), _YOLO),
}
"""By layout; what other families share a layout with is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorRows:
    """Predictions of a detector for some images, as rows.

    Attributes:
        rows: (N, R, 6 + K); see :mod:`senseapp.metrics.detection.rows`.
        class_boxes: (N, P, K, 4), a box for each class, of the last P rows; None where a row has one box.
        layout: what was recognised, in one sentence.
    """

    rows: Tensor
    class_boxes: Tensor | None = None
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReader:
    """Decodes every raw output of a network by the layout that was recognised in one of them."""

    layout: HeadLayout

    @classmethod
    def of(cls, raw: object, size: tuple[int, int]) -> HeadReader:
        """Return the reader for outputs like ``raw``, of images of ``size`` (height, width).

        Raises:
            UnsupportedModel: the layout is unknown; the message says what came.
        """
        return cls(layout=recognise(list(_tensors_in(raw)), size))

    @property
    def sentence(self) -> str:
        """What was recognised, in one sentence."""
        return f"Its outputs are read as {self.layout.sentence[0].lower()}{self.layout.sentence[1:]}"

    @property
    def usual_input(self) -> UsualInput | None:
        """How networks with such heads take pictures, by their authors' code."""
        return _USUAL_INPUTS.get(self.layout.name)

    def __call__(self, model_output: object) -> dict[str, Tensor]:
        """Return ``rows``, (N, R, 6 + K)."""
        return {_ROWS: decode(list(_tensors_in(model_output)), self.layout)}


def read_heads(raw: object) -> DetectorRows:
    """Return the rows of a raw output, by its names or by the layout that is recognised in it.

    Raises:
        UnsupportedModel: the layout is unknown; the message says what came.
    """
    named = _by_names(raw) if isinstance(raw, Mapping) else None
    if named is not None:
        return named
    if isinstance(raw, list) and all(isinstance(each, Mapping) and "boxes" in each for each in raw):
        raise UnsupportedModel(
            "These are torchvision's final boxes, after non-maximum suppression: they leave nothing to rank layers by. "
            "Load the network from torchvision's library, which opens its heads."
        )
    tensors = list(_tensors_in(raw))
    found = recognise(tensors)
    return DetectorRows(rows=decode(tensors, found), layout=found.sentence)


def _by_names(raw: Mapping[str, Any]) -> DetectorRows | None:
    """Return the rows of the opened heads of torchvision; None for other names."""
    names = set(raw)
    if names == {_ROWS}:
        return DetectorRows(rows=raw[_ROWS], layout=f"{raw[_ROWS].shape[1]:,} boxes")
    if {"anchor_boxes", "anchor_logits", "proposal_boxes", "softmax_logits"} <= names:
        return _of_regions(raw)
    if {"boxes", "softmax_logits"} <= names:
        return _of_anchors(raw, RowKind.SOFTMAX, "softmax_logits")
    if {"boxes", "sigmoid_logits", "centerness_logits"} <= names:
        return _of_anchors(raw, RowKind.ROOT_OF_PRODUCT, "sigmoid_logits", "centerness_logits")
    if {"boxes", "sigmoid_logits"} <= names:
        return _of_anchors(raw, RowKind.SIGMOID, "sigmoid_logits")
    return None


def _tensors_in(raw: object) -> Iterator[Tensor]:
    if isinstance(raw, Mapping):
        raw = list(raw.values())
    if isinstance(raw, list | tuple):
        for each in raw:
            yield from _tensors_in(each)
    elif hasattr(raw, "ndim"):
        yield cast("Tensor", raw)


def _of_anchors(raw: Mapping[str, Any], kind: RowKind, logits: str, objects: str = "") -> DetectorRows:
    values = raw[logits]
    extra = raw[objects].squeeze(-1) if objects else None
    rows = assembled(raw["boxes"], kind, logits=values, objects=extra, num_classes=values.shape[2])
    return DetectorRows(rows=rows, layout=f"{rows.shape[1]:,} anchors with {values.shape[2]} classes")


def _of_regions(raw: Mapping[str, Any]) -> DetectorRows:
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
    return DetectorRows(rows=torch.cat(rows, dim=1), class_boxes=boxes, layout=layout)
