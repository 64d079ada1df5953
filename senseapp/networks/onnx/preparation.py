"""Probable preparation of images for an ONNX file: from its metadata, else its first nodes, else the usual one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from senseapp.networks.loaded import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from senseapp.networks.onnx.metadata import preparation_in
from senseapp.networks.onnx.modules import OnnxNetwork, Operation
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.sources.building import channel_statistics
from senseapp.tasks.reading import Evidence, UsualInput

_CLASSIFIER_CROP = 224 / 256  # of timm and torchvision: the middle 224 pixels of 256
_SMALLEST_CROPPED = 64  # pixels: data sets of smaller pictures, such as CIFAR, are trained on whole ones
_ARITHMETIC = frozenset({"Sub", "Add", "Mul", "Div"})
_MOST_STEPS = 6  # at the input: a Cast, a Transpose and up to four of arithmetic
_BYTE_OFFSET, _BYTE_FACTOR = 2.0, 0.05
"""Larger offsets and divisors, and smaller factors, belong to values from 0 to 255."""


_USUAL_VALUES: Mapping[str, tuple[str, tuple[float, ...], tuple[float, ...]]] = {
    "shares": ("values from 0 to 1", (0.0,), (1.0,)),
    "bytes": ("values from 0 to 255", (0.0,), (1 / 255,)),
    "imagenet": ("mean and std of ImageNet", IMAGENET_MEAN, IMAGENET_STD),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualPreparation:
    """A preparation of images, what it is called beside others, and sentences on why it was taken.

    Attributes:
        evidence: how it is known: ``file`` (its metadata), ``graph`` (its first nodes), ``family``, or ``assumed``.
    """

    preprocessing: Preprocessing
    words: str
    notes: tuple[str, ...] = ()
    evidence: Evidence = "file"

    def of_family(self, usual: UsualInput | None) -> UsualPreparation:
        """Return how networks of a family take pictures, where nothing tells of this one; whole pictures, then."""
        if usual is None or self.evidence != "assumed":
            return self
        values, mean, std = _USUAL_VALUES[usual.values]
        words = f"{values}, channels in the order bgr" if usual.channel_order == "bgr" else values
        channels = len(self.preprocessing.mean)
        found = replace(
            self.preprocessing,
            mean=channel_statistics(mean, channels),
            std=channel_statistics(std, channels),
            channel_order=usual.channel_order or "rgb",
            fit=usual.fit,
        )
        sentence = f"The file does not say how its images are prepared: it gets {words}, as of {usual.family}."
        return replace(self, preprocessing=found, words=words, notes=(sentence,), evidence="family")


def is_channels_last(shape: Sequence[int]) -> bool:
    """Return whether images of this shape, batch included, are (N, H, W, C).

    >>> is_channels_last((1, 224, 224, 3)), is_channels_last((1, 3, 224, 224)), is_channels_last((1, 3, 3, 3))
    (True, False, False)
    """
    return len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4)


def usual_preparation(opened: OpenedOnnx, *, is_classifier: bool) -> UsualPreparation:
    """Return the preparation to begin with; images with labels can show that another one is right."""
    shape = _image_shape(opened)
    told = preparation_in(opened.metadata, shape)
    if told is not None:
        return UsualPreparation(preprocessing=told, words="as the file says")
    usual, sentence = _values(opened)
    words, mean, std = _USUAL_VALUES[usual]
    found = Preprocessing(
        input_shape=shape,
        mean=channel_statistics(mean, shape[0]),
        std=channel_statistics(std, shape[0]),
        crop_pct=_CLASSIFIER_CROP if is_classifier and min(shape[1:]) >= _SMALLEST_CROPPED else 1.0,
        fit="crop" if is_classifier else "stretch",
    )
    evidence: Evidence = "assumed" if usual == "imagenet" else "graph"
    return UsualPreparation(preprocessing=found, words=words, notes=(sentence,), evidence=evidence)


def _image_shape(opened: OpenedOnnx) -> tuple[int, int, int]:
    _, first, second, third = opened.input_shape
    return (third, first, second) if is_channels_last(opened.input_shape) else (first, second, third)


def _values(opened: OpenedOnnx) -> tuple[str, str]:
    """Return which of the usual values images have, and one sentence on why."""
    if not opened.input_dtype.is_floating_point:
        return "bytes", "The file takes whole numbers, so it gets values from 0 to 255."
    inside = _normalised_inside(opened.network)
    if inside is None:
        return "imagenet", (
            "The file does not say how its images are prepared: the images choose it, or you are asked. Without images "
            "it gets ImageNet's mean and std."
        )
    usual = "bytes" if inside else "shares"
    return usual, f"The file normalises its images itself, so it gets {_USUAL_VALUES[usual][0]}."


def _normalised_inside(network: OnnxNetwork) -> bool | None:
    """Return whether the first nodes normalise values from 0 to 255 (True) or from 0 to 1; None where they do not."""
    stored = {each.name: getattr(each.holder, each.attribute) for each in network.stored}
    value, found = network.input_names[0], False
    for step in network.steps[:_MOST_STEPS]:
        module = getattr(step.holder, step.attribute)
        if value not in step.inputs:
            continue
        if not isinstance(module, Operation) or len(step.outputs) != 1:
            break
        constants = [stored[name].detach() for name in step.inputs if name in stored]
        sizes = [float(each.abs().max()) for each in constants if each.numel()]
        if module.op in _ARITHMETIC and len(sizes) == 1:
            found = True
            if sizes[0] < _BYTE_FACTOR if module.op == "Mul" else sizes[0] > _BYTE_OFFSET:
                return True
        elif module.op not in ("Transpose", "Cast", "Identity"):
            break
        value = step.outputs[0]
    return False if found else None
