"""Layouts of detectors' raw outputs: recognised from shapes and ranges of values, and decoded by what was recognised.

A layout is recognised once, from the output of the uncompressed network for some images, and then decodes every output
of that network: a compressed network's values may lie in other ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from senseapp.core.errors import UnsupportedModel
from senseapp.tasks.detection.heads import by_anchor, by_map
from senseapp.tasks.detection.heads.layout import HeadLayout

if TYPE_CHECKING:
    from torch import Tensor


def recognise(tensors: Sequence[Tensor], size: tuple[int, int] | None = None) -> HeadLayout:
    """Return the layout of the raw tensors of a detector, images first, for inputs of ``size`` (height, width).

    Raises:
        UnsupportedModel: none of the known ones fits; the message says what came.
    """
    shapes = [tuple(each.shape) for each in tensors]
    if len(tensors) == 1 and tensors[0].ndim == 3:
        found = by_anchor.one_tensor(tensors[0], size)
    elif all(each.ndim == 3 for each in tensors):
        found = by_anchor.classes_and_boxes(tensors, size)
    elif all(each.ndim in (4, 5) for each in tensors):
        found = by_map.maps_of(tensors, size)
    else:
        found = None
    if found is None:
        listed = ", ".join(str(shape) for shape in shapes[:8]) or "nothing"
        raise UnsupportedModel(
            f"The layout of these outputs is none that is known for detectors: {listed}. Known are heads of YOLOv5 to "
            "v11 and YOLOX, classes with boxes as of SSD and DETR, distances by stride as of PicoDet and NanoDet, "
            "centre maps, and torchvision's detectors. Cut the graph before non-maximum suppression."
        )
    return found


def decode(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return rows, (N, R, 6 + K), of the raw tensors of a network whose layout was recognised."""
    return _DECODERS[layout.name](tensors, layout)


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
