"""A model ready to be measured, and how its images are prepared."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """How a picture becomes one input of the model.

    Attributes:
        input_shape: one image, (C, H, W).
        mean, std: per channel, on the 0 to 1 scale.
        crop_pct: share of the resized shorter side that the centre crop keeps.
        interpolation: ``bilinear``, ``bicubic`` or ``nearest``.
        channel_order: ``rgb``, or ``bgr`` for a model trained on pictures that OpenCV or Caffe read.
    """

    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = 1.0
    interpolation: str = "bilinear"
    channel_order: str = "rgb"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A network in ``eval()`` mode, float32, on the CPU, and what is known about where it came from.

    Attributes:
        module: takes (N, C, H, W) and returns class scores (N, num_classes).
        title: the name people see.
        preprocessing: the model's own way to prepare pictures.
        num_classes: width of the output.
        pretrained: whether the weights were trained; random ones are always labelled so.
        class_names: one per output, where known; else empty.
        fresh_head: whether the classifier is a random one in place of one that was missing; labels then mean nothing.
        notes: sentences a person should read (adapted head, weights that are not finite).
    """

    module: nn.Module
    title: str
    preprocessing: Preprocessing
    num_classes: int
    pretrained: bool
    class_names: tuple[str, ...] = ()
    fresh_head: bool = False
    notes: tuple[str, ...] = ()
