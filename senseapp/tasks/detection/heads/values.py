"""Tests of ranges of values in raw outputs: probabilities, logits, boxes, scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_SLACK = 1e-3  # of probabilities that were rounded
_NEARLY_ALL = 0.99  # share of rows: rounding may swap the corners of a box without area


def is_probability(values: Tensor) -> bool:
    """Return whether all values are probabilities, but for rounding."""
    return bool(values.min() >= -_SLACK) and bool(values.max() <= 1 + _SLACK)


def sums_to_one(values: Tensor) -> bool:
    """Return whether values (N, A, K) are probabilities that add up to 1 for each row."""
    return is_probability(values) and bool(((values.sum(dim=2) - 1).abs() < 1e-2).all())


def has_sides(values: Tensor) -> bool:
    """Return whether nearly all rows of four have no negative width or height, as boxes and not logits of classes."""
    as_corners = (values[..., 2:] >= values[..., :2]).all(dim=2).float().mean()
    as_sides = (values[..., 2:] >= 0).all(dim=2).float().mean()
    return bool(max(as_corners, as_sides) > _NEARLY_ALL)


def is_relative(boxes: Tensor) -> bool:
    """Return whether boxes are shares of the input's sides, as no box lies far outside."""
    return bool(boxes.abs().max() <= 2)


def has_negatives(values: Tensor) -> bool:
    """Return whether values are below zero as well, as those of no size or place are."""
    return bool(values.min() < 0)


def is_small(values: Tensor) -> bool:
    """Return whether places are shifts inside of a cell rather than pixels."""
    return bool(values.abs().median() < 4)


def is_mostly(classes: Tensor, place: int) -> bool:
    """Return whether ``place`` is the likeliest class of most rows (N, A, K)."""
    return bool((classes.argmax(dim=2) == place).float().mean() > 0.5)


def is_final(rows: Tensor) -> bool:
    """Return whether one column falls, as scores after sorting do, and another is of whole numbers."""
    falls = [bool((rows[:, 1:, c] <= rows[:, :-1, c] + 1e-6).all()) for c in range(rows.shape[2])]
    whole = [bool((rows[..., c] == rows[..., c].round()).all()) for c in range(rows.shape[2])]
    return any(falls) and any(whole)


def objects_are_rare(maps: Sequence[Tensor], width: int) -> bool:
    """Return whether the fifth channel of three parts is far below zero, as an object's logit is in most cells."""
    return all(float(each[:, 4::width].mean()) < -2 for each in maps)
