"""Raw outputs of detectors, recognised by names, shapes and ranges of values, and decoded to rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from senseapp.core.errors import InvalidSpec, UnsupportedModel
from senseapp.metrics.detection.rows import RowKind, assembled
from senseapp.tasks.detection.heads import by_anchor, by_map
from senseapp.tasks.detection.heads.layout import HeadLayout
from senseapp.tasks.reading import UsualInput, layout_from, layout_key

if TYPE_CHECKING:
    from torch import Tensor


_ROWS = "rows"
_YOLO = UsualInput(family="YOLOv5 to v11")
_USUAL_INPUTS = {
    each.family: each
    for each in (
        _YOLO,
        UsualInput(family="YOLOX", values="bytes", channel_order="bgr", fit="corner"),
        UsualInput(family="CenterFace", values="bytes"),
        UsualInput(family="PicoDet", values="imagenet", channel_order="", fit="stretch"),
    )
}
_DECODERS = {
    "distributions": by_anchor.decode_one,
    "grid": by_anchor.decode_one,
    "boxes and classes": by_anchor.decode_one,
    "softmax pair": by_anchor.decode_pair,
    "sigmoid pair": by_anchor.decode_pair,
    "distances by stride": by_anchor.decode_levels,
    "maps of distributions": by_map.decode_maps,
    "anchored maps": by_map.decode_anchored,
    "centre maps": by_map.decode_centres,
    "centre maps of logarithms": by_map.decode_centres,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorRows:
    """Predictions of a detector for some images, as rows.

    Attributes:
        rows: (N, R, 6 + K); see :mod:`senseapp.metrics.detection.rows`.
        class_boxes: (N, P, K, 4), a box for each class, of the last P rows; None where a row has one box.
        layout: what was recognised, in words.
    """

    rows: Tensor
    class_boxes: Tensor | None = None
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReader:
    """Decodes every raw output of a network by one layout: a compressed network's values may lie in other ranges."""

    layout: HeadLayout

    @property
    def key(self) -> str:
        """The layout as a setting."""
        return layout_key(self.layout)

    @property
    def num_outputs(self) -> int:
        """Number of classes, a background included."""
        return self.layout.num_classes

    @property
    def background(self) -> Literal["first", "last", "none"]:
        """The class that stands for no object."""
        return self.layout.background or "none"

    @property
    def words(self) -> str:
        """The layout, as part of a sentence."""
        return self.layout.words

    @property
    def usual_input(self) -> UsualInput | None:
        """How networks with such heads take pictures, by their authors' code."""
        return _USUAL_INPUTS.get(self.layout.family)

    def __call__(self, model_output: object) -> dict[str, Tensor]:
        """Return ``rows``, (N, R, 6 + K)."""
        return {_ROWS: decode(list(_tensors_in(model_output)), self.layout)}


def head_readers(
    raw: object, size: tuple[int, int] | None, num_classes: int = 0, *, every: bool = False
) -> tuple[HeadReader, ...]:
    """Return readers for outputs like ``raw`` of images of ``size`` (height, width), the most probable first.

    Each is of a layout that neither shapes nor values contradict. With ``every``, values
    only order those with an object's score and without. Where ``num_classes`` are known, layouts with as many
    (or one more, for a background) come alone, if there are any.

    Raises:
        UnsupportedModel: there is none; the message says what came.
    """
    found = recognise(list(_tensors_in(raw)), size, num_classes, every=every)
    fitting = [each for each in found if each.num_classes - bool(each.background) == num_classes]
    return tuple(HeadReader(layout=layout) for layout in fitting or found)


def reader_from(key: str) -> HeadReader:
    """Return the reader of a layout that a setting names; raises InvalidSpec where it names none."""
    layout = layout_from(key, HeadLayout)
    if layout.name not in _DECODERS or layout.num_classes < 1 or len(layout.size) != 2:
        raise InvalidSpec(f"There is no layout {layout.name[:40]!r} of detectors. Take one that the reading lists.")
    return HeadReader(layout=layout)


def recognise(
    tensors: Sequence[Tensor], size: tuple[int, int] | None = None, num_classes: int = 0, *, every: bool = False
) -> list[HeadLayout]:
    """Return the layouts of the raw tensors of a detector; see :func:`head_readers`."""
    shapes = [tuple(each.shape) for each in tensors]
    if len(tensors) == 1 and tensors[0].ndim == 3:
        found = list(by_anchor.of_one_tensor(tensors[0], size, num_classes, every=every))
    elif tensors and all(each.ndim == 3 for each in tensors):
        found = list(by_anchor.of_several(tensors, size))
    elif tensors and all(each.ndim in (4, 5) for each in tensors):
        found = [layout for layout in (by_map.maps_of(tensors, size),) if layout is not None]
    else:
        found = []
    if not found:
        listed = ", ".join(str(shape) for shape in shapes[:8]) or "nothing"
        raise UnsupportedModel(
            f"The layout of these outputs is none that is known for detectors: {listed}. Known are heads of YOLOv5 to "
            "v11 and YOLOX, classes with boxes as of SSD and DETR, distances by stride as of PicoDet and NanoDet, "
            "centre maps, and torchvision's detectors. Cut the graph before non-maximum suppression."
        )
    return found


def decode(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return rows, (N, R, 6 + K), of the raw tensors of a network of this layout."""
    return _DECODERS[layout.name](tensors, layout)


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
    found = recognise(tensors)[0]
    return DetectorRows(rows=decode(tensors, found), layout=found.words)


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
        tensor = cast("Tensor", raw)
        yield tensor.squeeze(2) if tensor.ndim == 4 and tensor.shape[2:] == (1, 4) else tensor  # YOLOv4's boxes


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
