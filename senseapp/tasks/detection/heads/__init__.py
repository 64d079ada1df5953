"""Raw outputs of detectors, recognised by names, shapes and ranges of values, and decoded to rows."""

from collections.abc import Mapping

import torch
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.metrics.detection.rows import RowKind, assembled
from senseapp.tasks.detection.heads import recognise
from senseapp.tasks.detection.heads.layout import HeadLayout, tables_in


def head_readers(
    raw: object, size: tuple[int, int], num_classes: int = 0, *, every: bool = False
) -> tuple[HeadLayout, ...]:
    """Return the layouts of outputs like ``raw`` of images of ``size`` (height, width), the most probable first.

    Neither shapes nor values contradict any of them. With ``every``, values only order those with an object's score and
    without. Where ``num_classes`` are known, layouts with as many (or one more, for a background) come alone, if there
    are any.

    Raises UnsupportedModel if there is none; the message says what came.
    """
    tensors = tables_in(raw)
    found: list[HeadLayout] = []
    if len(tensors) == 1 and tensors[0].ndim == 3:
        found = list(recognise.of_one_tensor(tensors[0], size, num_classes, every=every))
    elif tensors and all(each.ndim == 3 for each in tensors):
        found = list(recognise.of_several(tensors, size, every=every))
    elif tensors and all(each.ndim in (4, 5) for each in tensors):
        found = list(recognise.of_maps(tensors, size, every=every))
    if not found:
        raise _unknown(raw)
    fitting = (each for each in found if each.num_classes - (each.background != "none") == num_classes)
    return tuple(fitting) or tuple(found)


def _unknown(raw: object) -> UnsupportedModel:
    listed = ", ".join(str(tuple(each.shape)) for each in tables_in(raw)[:8]) or "nothing"
    return UnsupportedModel(
        f"The layout of these outputs is none that is known for detectors: {listed}. Known are heads of YOLOv5 to v11 "
        "and YOLOX, classes with boxes as of SSD and DETR, distances by stride as of PicoDet and NanoDet, centre maps, "
        "and torchvision's detectors. Cut the graph before non-maximum suppression."
    )


def read_heads(raw: object) -> tuple[Tensor, Tensor | None]:
    """Return the rows, (N, R, 6 + K), that a layout made, or those of the opened heads of torchvision.

    With them come boxes for each class, (N, P, K, 4), of the last P rows; None where a row has one box.

    Raises UnsupportedModel if it is neither; the message says what came.
    """
    if isinstance(raw, list) and raw and all(isinstance(each, Mapping) and "boxes" in each for each in raw):
        raise UnsupportedModel(
            "These are torchvision's final boxes, after non-maximum suppression: they leave nothing to rank layers by. "
            "Load the network from torchvision's library, which opens its heads."
        )
    named: dict[str, Tensor] = dict(raw) if isinstance(raw, Mapping) else {}
    if named.keys() == {"rows"}:
        return named["rows"], None
    if {"anchor_boxes", "anchor_logits", "proposal_boxes", "softmax_logits"} <= named.keys():
        return _of_regions(named)
    for logits, kind in (("softmax_logits", RowKind.SOFTMAX), ("sigmoid_logits", RowKind.SIGMOID)):
        if {"boxes", logits} <= named.keys():
            values, objects = named[logits], named.get("centerness_logits")
            if objects is not None:
                kind, objects = RowKind.ROOT_OF_PRODUCT, objects.squeeze(-1)
            rows = assembled(named["boxes"], kind, logits=values, objects=objects, num_classes=values.shape[2])
            return rows, None
    raise _unknown(raw)


def _of_regions(raw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    logits, boxes = raw["softmax_logits"], raw["proposal_boxes"]  # (N, P, K), (N, P, K, 4)
    likeliest = logits[..., 1:].detach().argmax(dim=2) + 1
    own = boxes.gather(2, likeliest[..., None, None].expand(-1, -1, 1, 4))[:, :, 0]
    count = logits.shape[2]
    rows = [
        assembled(raw["anchor_boxes"], RowKind.ANCHOR, logits=None, objects=raw["anchor_logits"], num_classes=count),
        assembled(own, RowKind.PROPOSAL, logits=logits, objects=None, num_classes=count),
    ]
    return torch.cat(rows, dim=1), boxes
