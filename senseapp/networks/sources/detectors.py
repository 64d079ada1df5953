"""Detectors of torchvision that return the outputs of their heads, before thresholds and suppression.

torchvision's own ``forward`` resizes pictures, and returns a few boxes of each. For measuring, the same modules run on
prepared images and return every box with its logits; :mod:`senseapp.tasks.detection` thresholds them as torchvision
does. The modules and the names of their weights stay as they are.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, KeypointRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.models.detection.ssd import SSD

from senseapp.networks.loaded import IMAGE_CHANNELS, Preprocessing, channel_statistics
from senseapp.records.spec import ModelSpec

RawHeads = dict[str, Tensor]
"""Tensors that :mod:`senseapp.tasks.detection.heads` reads by these names, images first."""


class _OpenDetector:
    """What all of them share."""

    def features_of(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Return the maps of the backbone."""
        found = cast(Any, self).backbone(images)
        return OrderedDict([("0", found)]) if isinstance(found, Tensor) else found

    def heads_of(self, images: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        """Return the head outputs of a one-stage network for each anchor, and the anchors, (A, 4) in pixels."""
        network = cast(Any, self)
        maps = list(self.features_of(images).values())
        return network.head(maps), network.anchor_generator(_listed(images), maps)[0]


def _listed(images: Tensor) -> ImageList:
    height, width = images.shape[-2:]
    return ImageList(images, [(height, width)] * len(images))


def _limits(images: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    return torch.tensor([width, height, width, height], dtype=images.dtype, device=images.device)


def _clipped(boxes: Tensor, images: Tensor) -> Tensor:
    return torch.minimum(boxes.clamp_min(0), _limits(images))


class _OpenOneStage(_OpenDetector):
    logits: ClassVar[str]

    def forward(self, images: Tensor) -> RawHeads:
        """Return ``boxes`` (N, A, 4) in pixels and the logits (N, A, K)."""
        found, anchors = self.heads_of(images)
        deltas = found["bbox_regression"]
        boxes = cast(SSD, self).box_coder.decode_single(deltas.reshape(-1, 4), anchors.repeat(len(deltas), 1))
        return {"boxes": _clipped(boxes.reshape(deltas.shape), images), self.logits: found["cls_logits"]}


class OpenSSD(_OpenOneStage, SSD):  # type: ignore[misc]  # torchvision has no types
    """SSD and SSDlite, whose first class is the background."""

    logits = "softmax_logits"


class OpenRetinaNet(_OpenOneStage, RetinaNet):  # type: ignore[misc]  # torchvision has no types
    """RetinaNet."""

    logits = "sigmoid_logits"


class OpenFCOS(_OpenDetector, FCOS):  # type: ignore[misc]  # torchvision has no types
    """FCOS."""

    def forward(self, images: Tensor) -> RawHeads:
        """Return ``boxes`` (N, A, 4), ``sigmoid_logits`` (N, A, K) and ``centerness_logits`` (N, A, 1)."""
        found, anchors = self.heads_of(images)
        deltas = found["bbox_regression"]
        return {
            "boxes": _clipped(self.box_coder.decode(deltas, anchors.expand(len(deltas), -1, -1)), images),
            "sigmoid_logits": found["cls_logits"],
            "centerness_logits": found["bbox_ctrness"],
        }


class _OpenRCNN(_OpenDetector):
    def forward(self, images: Tensor) -> RawHeads:
        """Return ``anchor_boxes``, ``anchor_logits``, ``proposal_boxes`` (N, P, K, 4) and ``softmax_logits`` (N, P, K).

        Of each image there are P regions, the most that the network may choose; where it chose fewer, the whole image
        stands in. Heads for masks and keypoints do not run.
        """
        own = cast(FasterRCNN, self)
        maps = self.features_of(images)
        anchor_boxes, anchor_logits, regions = self._regions(images, maps)
        pooled = own.roi_heads.box_roi_pool(maps, list(regions), [images.shape[-2:]] * len(images))
        logits, deltas = own.roi_heads.box_predictor(own.roi_heads.box_head(pooled))
        boxes = own.roi_heads.box_coder.decode(deltas, list(regions))  # (N * P, K, 4)
        shape = regions.shape[:2]
        return {
            "anchor_boxes": anchor_boxes,
            "anchor_logits": anchor_logits,
            "proposal_boxes": _clipped(boxes.reshape(*shape, -1, 4), images),
            "softmax_logits": logits.reshape(*shape, -1),
        }

    def _regions(self, images: Tensor, maps: OrderedDict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        rpn = cast(FasterRCNN, self).rpn
        values = list(maps.values())
        logits, deltas = rpn.head(values)
        anchors = rpn.anchor_generator(_listed(images), values)
        per_level = [each[0].numel() for each in logits]
        flat_logits, flat_deltas = concat_box_prediction_layers(logits, deltas)
        boxes = rpn.box_coder.decode(flat_deltas, anchors).reshape(len(images), -1, 4)
        sizes = [tuple(images.shape[-2:])] * len(images)
        chosen, _ = rpn.filter_proposals(boxes.detach(), flat_logits, sizes, per_level)
        most = rpn.post_nms_top_n()
        regions = _limits(images).mul(torch.tensor([0, 0, 1, 1], device=images.device)).repeat(len(images), most, 1)
        for index, found in enumerate(chosen):
            regions[index, : len(found)] = found
        return _clipped(boxes, images), flat_logits.reshape(len(images), -1), regions


class OpenFasterRCNN(_OpenRCNN, FasterRCNN):  # type: ignore[misc]
    """Faster R-CNN."""


class OpenMaskRCNN(_OpenRCNN, MaskRCNN):  # type: ignore[misc]
    """Mask R-CNN, without its masks."""


class OpenKeypointRCNN(_OpenRCNN, KeypointRCNN):  # type: ignore[misc]
    """Keypoint R-CNN, without its keypoints."""


_OPEN: dict[type[nn.Module], type[nn.Module]] = {
    SSD: OpenSSD,
    RetinaNet: OpenRetinaNet,
    FCOS: OpenFCOS,
    FasterRCNN: OpenFasterRCNN,
    MaskRCNN: OpenMaskRCNN,
    KeypointRCNN: OpenKeypointRCNN,
}


def opened_detector(module: nn.Module) -> nn.Module:
    """Return a detector of torchvision, changed so that it returns :data:`RawHeads` for prepared images."""
    module.__class__ = _OPEN[type(module)]
    return module


def detector_preprocessing(module: nn.Module, spec: ModelSpec) -> Preprocessing:
    """Return how torchvision prepares pictures for a detector, for one input size.

    SSD stretches pictures; the others keep the proportions, and here they all get borders to the same square.
    """
    transform = cast(Any, module).transform
    side = spec.img_size or int(transform.min_size[0])
    channels = spec.in_chans or IMAGE_CHANNELS
    return Preprocessing(
        input_shape=(channels, side, side),
        mean=channel_statistics(tuple(transform.image_mean), channels),
        std=channel_statistics(tuple(transform.image_std), channels),
        fit="stretch" if isinstance(module, SSD) else "letterbox",
    )


def detector_notes(module: nn.Module) -> tuple[str, ...]:
    """Return a sentence on heads that are not measured."""
    heads = cast(Any, getattr(module, "roi_heads", None))
    left = [what for what in ("mask", "keypoint") if getattr(heads, f"{what}_head", None) is not None]
    return tuple(f"Boxes and classes are measured; the {what} head does not run and stays as it is." for what in left)
