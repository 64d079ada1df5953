"""Tests of the values in raw outputs: probabilities, logits, boxes, scores.

A tensor on the device ``meta`` has a shape and no values: a test then returns what the fewest layouts contradict.
"""

from torch import Tensor

_SLACK = 1e-3  # of probabilities that were rounded
_NEARLY_ALL = 0.99  # share of rows: rounding may swap the corners of a box without area
_TOP = 32  # boxes with the highest scores
_LIKELY, _UNLIKELY = 0.5, 0.15  # ends of the range in which a second score says nothing


def is_probability(values: Tensor) -> bool:
    """Return whether all values are probabilities, but for rounding."""
    return values.is_meta or (bool(values.min() >= -_SLACK) and bool(values.max() <= 1 + _SLACK))


def sums_to_one(values: Tensor) -> bool:
    """Return whether values (N, A, K) are probabilities that add up to 1 for each row."""
    if values.is_meta or values.shape[2] < 2:
        return False
    return is_probability(values) and bool(((values.sum(dim=2) - 1).abs() < 1e-2).all())


def are_corners(boxes: Tensor) -> bool:
    """Return whether nearly all rows (N, A, 4) are corners: right of left, and below the top."""
    if boxes.is_meta:
        return False
    return bool((boxes[..., 2:] >= boxes[..., :2]).all(dim=2).float().mean() > _NEARLY_ALL)


def has_sides(values: Tensor) -> bool:
    """Return whether nearly all rows of four have no negative width or height, as boxes and not logits of classes."""
    as_sides = values.is_meta or bool((values[..., 2:] >= 0).all(dim=2).float().mean() > _NEARLY_ALL)
    return as_sides or are_corners(values)


def rows_come_first(boxes: Tensor, *, corners: bool) -> bool | None:
    """Return whether boxes (N, A, 4) name y before x; None where their order does not tell.

    Heads list cells row by row, so that x differs more than y between neighbours.
    """
    if boxes.is_meta or boxes.shape[1] < _TOP:
        return None
    middle = (boxes[..., :2] + boxes[..., 2:]) / 2 if corners else boxes[..., :2]
    first, second = middle.diff(dim=1).abs().mean(dim=(0, 1)).tolist()
    return True if first < second / 2 else False if second < first / 2 else None


def is_relative(boxes: Tensor) -> bool:
    """Return whether boxes are shares of the input's sides, as no box lies far outside."""
    return not boxes.is_meta and bool(boxes.abs().max() <= 2)


def are_shifts(boxes: Tensor) -> bool:
    """Return whether boxes (N, A, 4) are shifts inside of cells and logarithms, rather than pixels or shares."""
    if boxes.is_meta or bool(boxes[..., :2].abs().median() >= 4) or rows_come_first(boxes, corners=False) is not None:
        return False  # decoded boxes follow the cells
    return not (bool((boxes[..., 2:] > 0).all(dim=2).float().mean() > _NEARLY_ALL) and is_relative(boxes))


def scores_in(columns: Tensor) -> tuple[int, int]:
    """Return how many of the first columns (N, A, W) are small for most boxes, and how many are probabilities.

    Masks' coefficients, key points and angles, which follow the scores in some networks, are neither. Where the first
    column is no probability all are taken for logits, whose sigmoid is small for most boxes.
    """
    width = int(columns.shape[2])
    if columns.is_meta:
        return width, width
    flat = columns.flatten(0, 1)
    inside = (flat.amin(dim=0) >= -_SLACK) & (flat.amax(dim=0) <= 1 + _SLACK)
    typical = flat[:: max(1, len(flat) // 4096)].median(dim=0).values
    if not bool(inside[0]):
        rare = typical < -1
        first = int(rare.int().cumprod(dim=0).sum())
        return first if first == int(rare.sum()) else width, width
    rare = inside & (typical < 0.25)  # a score that most boxes have little of
    return int(rare.int().cumprod(dim=0).sum()), int(inside.int().cumprod(dim=0).sum())


def unread_before(columns: Tensor) -> int:
    """Return how many of the first columns (N, A, W) are no scores, as an angle, before others that are to the last."""
    if columns.is_meta:
        return 0
    flat = columns.flatten(0, 1)
    inside = (flat.amin(dim=0) >= -_SLACK) & (flat.amax(dim=0) <= 1 + _SLACK)
    rare = inside & (flat.median(dim=0).values < 0.25)
    scores = int(rare.flip(0).int().cumprod(dim=0).sum())
    return len(rare) - scores if scores and not bool(inside[0]) else 0


def is_object(scores: Tensor, others: Tensor) -> bool | None:
    """Return whether ``scores`` (N, A) are of an object of any class, with ``others`` (N, A, K) of the classes.

    A box that surely holds an object has a likely class beside that score; a box that is surely of one class has
    no other likely class. A score that is 1 of every box, as YOLOv6 has, is of no class. None where the surest boxes
    tell neither.
    """
    if scores.is_meta:
        return None
    if bool(scores.min() > 1 - _SLACK):
        return True
    surest = scores.flatten().topk(min(_TOP, scores.numel()))
    beside = others.flatten(0, 1)[surest.indices].amax(dim=1)[surest.values > _LIKELY]
    if len(beside) < _TOP // 8:
        return None
    typical = float(beside.median())
    return True if typical > _LIKELY else False if typical < _UNLIKELY else None


def is_quiet(logits: Tensor) -> bool:
    """Return whether most rows (N, A, K) have no class above logit −1, as with sigmoids and no background."""
    return not logits.is_meta and bool((logits.amax(dim=2) < -1.0).float().mean() > 0.5)


def usual_class(classes: Tensor) -> int:
    """Return the class that is the likeliest of most rows (N, A, K); -1 where there is none."""
    if classes.is_meta:
        return -1
    counts = classes.argmax(dim=2).flatten().bincount(minlength=classes.shape[2])
    likeliest = int(counts.argmax())
    return likeliest if 2 * int(counts[likeliest]) > int(counts.sum()) else -1


def is_final(rows: Tensor) -> bool:
    """Return whether one column falls, as scores after sorting do, and another is of whole numbers."""
    if rows.is_meta:
        return False
    if not bool(rows.any()):  # no object in noise, and places for some
        return True
    falls = (rows[:, 1:] <= rows[:, :-1] + 1e-6).flatten(0, 1).all(dim=0) & (rows[:, :1] > rows[:, -1:]).any(0)[0]
    return bool(falls.any()) and bool((rows == rows.round()).flatten(0, 1).all(dim=0).any())
