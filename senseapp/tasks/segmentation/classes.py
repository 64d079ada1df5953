"""Match of class numbers in masks with classes of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from senseapp.core.texts import first_names, printable
from senseapp.metrics.segmentation import VOID
from senseapp.tasks.labels import FittedAnnotations

_SEPARATORS = re.compile(r"[\s_-]+")
_BACKGROUND = "background"
_TRAINED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""Cityscapes' ids of the 19 classes that networks are trained on, in the order of their outputs.

Source: ``cityscapesscripts/helpers/labels.py``.
"""


def fit_classes(
    masks: Tensor, names: Sequence[str], output_names: Sequence[str], num_outputs: int
) -> FittedAnnotations:
    """Return masks, uint8 (N, H, W), in the model's class numbers, and say how they were read.

    Classes are matched by name where both sides have names, else by number. Pixels of classes that the model does not
    have are void where they have a name; numbers that are too large are left for the check of the targets.
    """
    shown = tuple(output_names) or tuple(names)
    by_name = _by_name(names, output_names)
    if by_name:
        missing = [name for number, name in enumerate(names) if name and number not in by_name]
        note = f"The model has no class {first_names(list(map(printable, missing)))}: their pixels are void."
        return FittedAnnotations(values=_mapped(masks, by_name), names=shown, notes=(note,) if missing else ())
    present = set(masks.flatten().bincount(minlength=VOID + 1).nonzero().flatten().tolist()) if len(masks) else set()
    known = present - {VOID}
    if num_outputs == 2 and VOID in present and known == {0}:
        note = "Masks hold 0 and 255 only: 255 was taken for the second class."
        return FittedAnnotations(values=_mapped(masks, {0: 0, VOID: 1}), names=shown, notes=(note,))
    if num_outputs == len(_TRAINED) and max(known, default=0) >= num_outputs and known <= set(range(34)):
        note = "Masks hold ids of Cityscapes: they were read as its 19 classes for training, and other ids as void."
        meaning = {number: place for place, number in enumerate(_TRAINED)}
        return FittedAnnotations(values=_mapped(masks, meaning), names=shown, notes=(note,))
    return FittedAnnotations(values=masks, names=shown)


def _by_name(names: Sequence[str], output_names: Sequence[str]) -> dict[int, int]:
    """Return the model's class of each class number that has a name; empty where no name is one of the model's.

    The class without a name before all others is the background.
    """
    spelled = {_spelling(name): number for number, name in enumerate(output_names)}
    found = {number: spelled[_spelling(name)] for number, name in enumerate(names) if _spelling(name) in spelled}
    if found and names and not names[0]:
        found |= {0: spelled[_BACKGROUND]} if _BACKGROUND in spelled else {}
    return found


def _spelling(name: str) -> str:
    return _SEPARATORS.sub("", name).casefold()


def _mapped(masks: Tensor, meaning: Mapping[int, int]) -> Tensor:
    """Return masks with each number replaced by what it means; others are void."""
    table = np.full(VOID + 1, VOID, dtype=np.uint8)
    for number, found in meaning.items():
        table[number] = found
    return torch.from_numpy(table[masks.numpy()])
