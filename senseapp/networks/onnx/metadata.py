"""Class names and preparation of images of a file: from its metadata, as untrusted text.

Where that does not say how images are prepared, the first nodes tell, else it is the usual way.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from onnx import helper, load_model_from_string

from senseapp.core.foreign_values import (
    BadValue,
    items,
    mapping,
    number,
    read_json,
    read_python,
    read_yaml,
    text,
    whole,
)
from senseapp.networks.loaded import FITS, IMAGENET_MEAN, IMAGENET_STD, Preprocessing, channel_statistics
from senseapp.networks.onnx.modules import OnnxNetwork, Operation
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.tasks.reading import Evidence, UsualInput

CLASSES, PREPARATION = "senseapp.classes", "senseapp.preparation"
"""Keys of the entries that senseapp writes: a JSON list by output, and a JSON object of Preprocessing's fields."""
THRESHOLDS = ("senseapp.score_threshold", "senseapp.original_score_threshold")
"""Keys of the scores from which answers count, in this file and in the one that it was made of."""
PADDLEX = "inference.yml"
"""Name of the settings that PaddleX exports beside a file, under which they are kept in it."""
LONGEST_NAMES = 2_000_000
"""Characters of all class names together that a file carries."""
_NAMES = "names"  # of other exporters: a dictionary by output, or a list, as Python writes it
_LINES = "character"  # of others: one name a line
_INTERPOLATIONS = ("bilinear", "bicubic", "nearest")
_ARITHMETIC = frozenset({"Sub", "Add", "Mul", "Div"})
_MOST_STEPS = 6  # at the input: a Cast, a Transpose and up to four of arithmetic
_BYTE_OFFSET, _BYTE_FACTOR = 2.0, 0.05
"""Larger offsets and divisors, and smaller factors, belong to values from 0 to 255."""


Length = TypeVar("Length", int, int | None)
_USUAL_VALUES: Mapping[str, tuple[str, tuple[float, ...], tuple[float, ...]]] = {
    "shares": ("values from 0 to 1", (0.0,), (1.0,)),
    "bytes": ("values from 0 to 255", (0.0,), (1 / 255,)),
    "imagenet": ("mean and spread of ImageNet", IMAGENET_MEAN, IMAGENET_STD),
}


def told_of(
    preprocessing: Preprocessing | None, class_names: Sequence[str], thresholds: tuple[float, float] | None = None
) -> dict[str, str]:
    """Return the entries that a program needs to run a file on pictures, as far as they are given.

    Keys are ``senseapp.preparation`` (JSON of input_shape, mean, std, crop_pct, interpolation, channel_order, fit),
    ``senseapp.classes`` (JSON list, by output), and ``senseapp.score_threshold`` and
    ``senseapp.original_score_threshold``: the scores from which answers count in this file and in the original.
    """
    found: dict[str, str] = {}
    if preprocessing is not None:
        fields = {name: getattr(preprocessing, name) for name in Preprocessing.__slots__}
        found[PREPARATION] = json.dumps(fields, allow_nan=False)
    names = json.dumps(list(class_names))
    if class_names and len(names) <= LONGEST_NAMES:
        found[CLASSES] = names
    if thresholds is not None:
        found |= dict(zip(THRESHOLDS, map(repr, thresholds), strict=True))
    return found


def described(content: bytes, told: Mapping[str, str]) -> bytes:
    """Return an ONNX file with these entries in its metadata, beside or in place of its own."""
    model = load_model_from_string(content)
    helper.set_model_props(model, {**{entry.key: entry.value for entry in model.metadata_props}, **told})
    return bytes(model.SerializeToString())


def side_in(metadata: Mapping[str, str]) -> int | None:
    """Return the side of square images that senseapp measured or Ultralytics exported with; None if it is not told."""
    try:
        own = mapping(read_json(metadata[PREPARATION]), PREPARATION) if PREPARATION in metadata else {}
        told = own["input_shape"] if own else read_python(metadata.get("imgsz", ""))
        sides = {whole(each, "a side", least=1) for each in items(told, "sides")[-2:]}
    except (BadValue, KeyError):
        return None
    return sides.pop() if len(sides) == 1 else None


def class_names_in(metadata: Mapping[str, str], count: int) -> tuple[str, ...]:
    r"""Return ``count`` class names, by output; empty where the file has none, or another number.

    >>> class_names_in({"names": "{0: 'cat', 1: 'dog'}"}, 2)
    ('cat', 'dog')
    >>> class_names_in({"character": "cat\ndog"}, 2)
    ('cat', 'dog')
    """
    names = names_in(metadata)
    return names if len(names) == count else ()


def names_in(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the class names of a file, by output; empty where it has none."""
    for key, read in ((CLASSES, read_json), (_NAMES, read_python), (_LINES, str.splitlines)):
        names = _listed(metadata.get(key, ""), read)
        if names:
            return tuple(name[:200] for name in names)
    return ()


def _listed(written: str, read: Any) -> list[str]:
    if not 0 < len(written) <= LONGEST_NAMES:
        return []
    try:
        found = read(written)
    except BadValue:
        return []
    if isinstance(found, dict):
        found = [found.get(index) for index in range(len(found))]
    return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else []


def preparation_in(metadata: Mapping[str, str], shape: tuple[int, int, int]) -> Preprocessing | None:
    """Return how images of ``shape`` (C, H, W) are prepared; None where the file does not say, or of other images.

    Ultralytics' exports take values from 0 to 1, of the whole picture unless they classify.
    """
    if PREPARATION not in metadata and PADDLEX in metadata:
        return _of_paddlex(metadata[PADDLEX], shape)
    if PREPARATION not in metadata and {"stride", _NAMES} <= metadata.keys():  # of Ultralytics
        fit = "crop" if metadata.get("task") == "classify" else "letterbox"
        return Preprocessing(input_shape=shape, fit=fit, **_usual("shares", shape[0])[1])
    try:
        told = mapping(read_json(metadata.get(PREPARATION, "")), PREPARATION)
        found = Preprocessing(
            input_shape=tuple(whole(each, "a side") for each in items(told["input_shape"], "input_shape")),  # type: ignore[arg-type]
            mean=_numbers(told["mean"], shape[0]),
            std=_numbers(told["std"], shape[0]),
            crop_pct=number(told["crop_pct"], "crop_pct"),
            interpolation=text(told["interpolation"], "interpolation"),
            channel_order=text(told["channel_order"], "channel_order"),
            fit=text(told.get("fit", "crop"), "fit"),
        )
    except (BadValue, KeyError):
        return None
    known = found.interpolation in _INTERPOLATIONS and found.channel_order in ("rgb", "bgr") and found.fit in FITS
    fits = found.input_shape == shape and 0 < found.crop_pct <= 1 and all(each > 0 for each in found.std)
    return found if known and fits else None


def _of_paddlex(written: str, shape: tuple[int, int, int]) -> Preprocessing | None:
    """Return what PaddleX's steps, read without the anchors around them, do to pictures; None where none normalises."""
    lines = written.splitlines()
    first = next((place for place, line in enumerate(lines) if line.rstrip() in ("PreProcess:", "Preprocess:")), 0)
    last = next((place for place in range(first + 1, len(lines)) if lines[place][:1] not in (*" -#", "")), len(lines))
    try:
        (told,) = mapping(read_yaml("\n".join(lines[first:last])), PADDLEX).values()
        steps = items(told["transform_ops"] if isinstance(told, dict) else told, "steps")
        named = [
            {str(each["type"]): each} if "type" in each else each for each in (mapping(s, "a step") for s in steps)
        ]
        found = {name: how if isinstance(how, dict) else {} for each in named for name, how in each.items()}
        normal = found["NormalizeImage"]
        if normal.get("norm_type") == "none":
            normal = {"mean": [0.0] * shape[0], "std": [1.0] * shape[0]}
        std = _numbers(normal["std"], shape[0])
        if min(std) <= 0:
            return None
        cropped = "CropImage" in found
        return Preprocessing(
            input_shape=shape,
            mean=_numbers(normal["mean"], shape[0]),
            std=std,
            crop_pct=Preprocessing.USUAL_CROP if cropped else 1.0,  # its usual steps
            channel_order="bgr" if found.get("DecodeImage", {}).get("img_mode") == "BGR" else "rgb",
            fit="crop" if cropped else "stretch",
        )
    except (BadValue, KeyError, ValueError):
        return None


def _numbers(told: object, count: int) -> tuple[float, ...]:
    found = tuple(number(each, "a statistic") for each in items(told, "statistics"))
    if len(found) != count:
        raise BadValue("not a number for each channel")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualPreparation:
    """A preparation of images, what it is called beside others, sentences on why it was taken, and how it is known."""

    preprocessing: Preprocessing
    words: str
    notes: tuple[str, ...] = ()
    evidence: Evidence = "file"

    def of_family(self, usual: UsualInput | None) -> Self:
        """Return how networks of a family take pictures, where nothing tells of this one; whole pictures, then."""
        if usual is None or self.evidence != "assumed":
            return self
        values, statistics = _usual(usual.values, len(self.preprocessing.mean))
        words = f"{values}, channels in the order bgr" if usual.channel_order == "bgr" else values
        found = replace(self.preprocessing, **statistics, channel_order=usual.channel_order or "rgb", fit=usual.fit)
        sentence = f"The file does not say how its images are prepared: it gets {words}, as of {usual.family}."
        return replace(self, preprocessing=found, words=words, notes=(sentence,), evidence="family")


def is_channels_last(shape: Sequence[int | None]) -> bool:
    """Return whether images of this shape, batch included, are (N, H, W, C).

    >>> is_channels_last((1, 224, 224, 3)), is_channels_last((1, 3, 224, 224)), is_channels_last((1, 3, 3, 3))
    (True, False, False)
    """
    return len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4)


def usual_preparation(opened: OpenedOnnx, *, is_classifier: bool) -> UsualPreparation:
    """Return the preparation to begin with; images with labels can show that another one is right.

    Nothing of a picture is cropped away: a crop is usual for published networks, not for somebody's own.
    """
    shape = image_shape(opened.input_shape)
    told = preparation_in(opened.metadata, shape)
    if told is not None:
        return UsualPreparation(preprocessing=told, words="as the file says")
    usual, sentence = _values(opened)
    words, statistics = _usual(usual, shape[0])
    found = Preprocessing(input_shape=shape, **statistics, fit="crop" if is_classifier else "stretch")
    evidence: Evidence = "assumed" if usual == "imagenet" else "graph"
    return UsualPreparation(preprocessing=found, words=words, notes=(sentence,), evidence=evidence)


def _usual(values: str, channels: int) -> tuple[str, dict[str, Any]]:
    """Return what usual values are called, and their mean and std for so many channels."""
    words, mean, std = _USUAL_VALUES[values]
    return words, {"mean": channel_statistics(mean, channels), "std": channel_statistics(std, channels)}


def image_shape(shape: Sequence[Length]) -> tuple[Length, Length, Length]:
    """Return channels, height and width of images of a shape that includes the batch."""
    _, first, second, third = shape
    return (third, first, second) if is_channels_last(shape) else (first, second, third)


def _values(opened: OpenedOnnx) -> tuple[str, str]:
    """Return which of the usual values images have, and one sentence on why."""
    if not opened.input_dtype.is_floating_point:
        return "bytes", "The file takes whole numbers, so it gets values from 0 to 255."
    inside = _normalised_inside(opened.network)
    if inside is None:
        return "imagenet", (
            "The file does not say how its images are prepared: the images choose it, or you are asked. Without images "
            "it gets ImageNet's mean and spread."
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
