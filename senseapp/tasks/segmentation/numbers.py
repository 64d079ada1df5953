"""Values of masks as classes of a model: class numbers, greys, ids of known sets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from senseapp.metrics.segmentation import VOID
from senseapp.tasks.annotations import AnnotationFiles
from senseapp.tasks.class_numbers import ModelClasses, Numbering, WrittenClasses, fit_numbers
from senseapp.tasks.labels import FittedAnnotations
from senseapp.tasks.segmentation.coco import REST

_TRAINED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""Cityscapes' ids of the 19 classes that networks are trained on, in the order of their outputs.

Source: ``cityscapesscripts/helpers/labels.py``.
"""
_CITYSCAPES = range(34)  # all of its ids
_MOST_SHADES = 16  # classes that are told apart by shades of grey


def fit_masks(
    masks: Tensor, files: AnnotationFiles, model: ModelClasses, confirmed: Sequence[tuple[str, int]] = ()
) -> FittedAnnotations:
    """Return masks, uint8 (N, H, W), in the model's class numbers; values that mean no class are void.

    Raises:
        InvalidDataset: values cannot be the model's classes.
    """
    present: set[int] = set().union(*(np.unique(mask.numpy()).tolist() for mask in masks))
    model = replace(model, background="none")
    more = [*_shades(present, model.num_outputs), *_ids(present - {VOID}, model.num_outputs)]
    white = any(VOID in each.meaning for each in more) or str(VOID) in dict(confirmed)
    written = WrittenClasses(
        used=(present - {VOID}).union(files.used, {VOID} & present if white else ()),
        names={number: name for number, name in enumerate(files.names) if name},
        rest=REST if files.parsed else None,
        blank=() if files.parsed else {0},
    )
    return fit_numbers(masks, written, model, _renumbered, confirmed=confirmed, more=more)


def _shades(present: Collection[int], num_classes: int) -> Iterator[Numbering]:
    """Yield the reading of shades at even distances from black, the first class, to white, the last."""
    if not 2 <= num_classes <= _MOST_SHADES:
        return
    shades = [VOID * place / (num_classes - 1) for place in range(num_classes)]
    meaning = {whole: place for place, shade in enumerate(shades) for whole in {int(shade), int(shade + 0.99)}}
    between = any(num_classes <= value < VOID for value in present)
    if {*present} <= meaning.keys() and (between or (num_classes == 2 and VOID in present)):
        yield Numbering(how="as shades from black to white", meaning=meaning)


def _ids(present: Collection[int], num_classes: int) -> Iterator[Numbering]:
    """Yield the readings of the ids of known sets."""
    if num_classes == len(_TRAINED) and {*present} <= {*_CITYSCAPES}:
        meaning = {number: place for place, number in enumerate(_TRAINED)}
        yield Numbering(how="as ids of Cityscapes, of which 19 are classes", meaning=meaning, blank=_CITYSCAPES)


def _renumbered(masks: Tensor, meaning: Mapping[int, int]) -> Tensor:
    """Return masks with each number replaced by what it means; others are void."""
    table = np.full(VOID + 1, VOID, dtype=np.uint8)
    table[list(meaning.keys())] = list(meaning.values())
    return torch.from_numpy(table[masks.numpy()])
