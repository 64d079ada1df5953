"""Metadata of a file: class names and the preparation of images, as untrusted text."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from senseapp.networks.loaded import Preprocessing

CLASSES, PREPARATION = "senseapp.classes", "senseapp.preparation"
"""Keys of the entries that senseapp writes: a JSON list by output, and a JSON object of Preprocessing's fields."""
THRESHOLD, ORIGINAL_THRESHOLD = "senseapp.score_threshold", "senseapp.original_score_threshold"
"""Keys of the scores from which answers count, in this file and in the one that it was made of."""
LONGEST_NAMES = 2_000_000
"""Characters of all class names together that a file carries."""
_NAMES = "names"  # of other exporters: a dictionary by output, or a list, as Python writes it
_LINES = "character"  # of others: one name a line
_LONGEST_NAME = 200  # characters, as of names from model folders
_INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


def class_names_in(metadata: Mapping[str, str], count: int) -> tuple[str, ...]:
    r"""Return ``count`` class names, by output; empty where the file has none, or another number.

    >>> class_names_in({"names": "{0: 'cat', 1: 'dog'}"}, 2)
    ('cat', 'dog')
    >>> class_names_in({"character": "cat\ndog"}, 2)
    ('cat', 'dog')
    """
    for key, read in ((CLASSES, json.loads), (_NAMES, ast.literal_eval), (_LINES, str.splitlines)):
        names = _listed(metadata.get(key, ""), read)
        if names and len(names) == count:
            return tuple(name[:_LONGEST_NAME] for name in names)
    return ()


def _listed(text: str, read: Any) -> list[str]:
    if not 0 < len(text) <= LONGEST_NAMES:
        return []
    try:
        found = read(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    if isinstance(found, dict):
        if set(found) != set(range(len(found))):
            return []
        found = [found[index] for index in range(len(found))]
    return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else []


def preparation_in(metadata: Mapping[str, str], shape: tuple[int, int, int]) -> Preprocessing | None:
    """Return how images of ``shape`` (C, H, W) are prepared; None where the file does not say, or of other images."""
    try:
        told = json.loads(metadata.get(PREPARATION, ""))
        found = Preprocessing(
            input_shape=tuple(int(each) for each in told["input_shape"]),  # type: ignore[arg-type]
            mean=_numbers(told["mean"], shape[0]),
            std=_numbers(told["std"], shape[0]),
            crop_pct=float(told["crop_pct"]),
            interpolation=str(told["interpolation"]),
            channel_order=str(told["channel_order"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    known = found.interpolation in _INTERPOLATIONS and found.channel_order in ("rgb", "bgr")
    fits = found.input_shape == shape and 0 < found.crop_pct <= 1 and all(each > 0 for each in found.std)
    return found if known and fits else None


def _numbers(told: Sequence[Any], count: int) -> tuple[float, ...]:
    found = tuple(float(each) for each in told)
    if len(found) != count or not all(map(math.isfinite, found)):
        raise ValueError("not a number for each channel")
    return found
