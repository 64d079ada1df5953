"""Metadata of a file: class names and the preparation of images, as untrusted text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from senseapp.networks.loaded import FITS, Preprocessing

CLASSES, PREPARATION = "senseapp.classes", "senseapp.preparation"
"""Keys of the entries that senseapp writes: a JSON list by output, and a JSON object of Preprocessing's fields."""
THRESHOLD, ORIGINAL_THRESHOLD = "senseapp.score_threshold", "senseapp.original_score_threshold"
"""Keys of the scores from which answers count, in this file and in the one that it was made of."""
PADDLEX = "inference.yml"
"""Name of the settings that PaddleX exports beside a file, under which they are kept in it."""
LONGEST_NAMES = 2_000_000
"""Characters of all class names together that a file carries."""
_NAMES = "names"  # of other exporters: a dictionary by output, or a list, as Python writes it
_LINES = "character"  # of others: one name a line
_INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


def num_classes_in(metadata: Mapping[str, str]) -> int:
    """Return how many class names the file has; 0 where it has none."""
    return len(_names_in(metadata))


def side_in(metadata: Mapping[str, str]) -> int | None:
    """Return the side of square images that an export of Ultralytics was made for; None where it does not say."""
    try:
        sides = {whole(each, "a side") for each in items(read_python(metadata.get("imgsz", "")), "imgsz")}
    except BadValue:
        return None
    return sides.pop() if len(sides) == 1 else None


def class_names_in(metadata: Mapping[str, str], count: int) -> tuple[str, ...]:
    r"""Return ``count`` class names, by output; empty where the file has none, or another number.

    >>> class_names_in({"names": "{0: 'cat', 1: 'dog'}"}, 2)
    ('cat', 'dog')
    >>> class_names_in({"character": "cat\ndog"}, 2)
    ('cat', 'dog')
    """
    names = _names_in(metadata)
    return names if len(names) == count else ()


def _names_in(metadata: Mapping[str, str]) -> tuple[str, ...]:
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
        if set(found) != set(range(len(found))):
            return []
        found = [found[index] for index in range(len(found))]
    return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else []


def preparation_in(metadata: Mapping[str, str], shape: tuple[int, int, int]) -> Preprocessing | None:
    """Return how images of ``shape`` (C, H, W) are prepared; None where the file does not say, or of other images.

    Ultralytics' exports take values from 0 to 1, of the whole picture unless they classify.
    """
    if PREPARATION not in metadata and PADDLEX in metadata:
        return _of_paddlex(metadata[PADDLEX], shape)
    if PREPARATION not in metadata and {"stride", _NAMES} <= metadata.keys():  # of Ultralytics
        fit = "crop" if metadata.get("task") == "classify" else "letterbox"
        zeros, ones = (0.0,) * shape[0], (1.0,) * shape[0]
        return Preprocessing(input_shape=shape, mean=zeros, std=ones, fit=fit)
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
    """Return what the steps of PaddleX's settings do to pictures; None where they do not normalise them.

    The entry that names the steps is read alone: others hold anchors of YAML.
    """
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
            crop_pct=224 / 256 if cropped else 1.0,  # its usual steps
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
