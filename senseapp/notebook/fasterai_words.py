"""What fasterai's words for criteria and granularities mean here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from senseapp.compressions.base import COLUMN, DEPTH, GROUP, INPUT, OUTPUT, ROW
from senseapp.core.errors import InvalidSpec
from senseapp.records.profile import LayerProfile

Criteria = str | Callable[..., Any]
"""A name, an object of fasterai's class Criteria, or a function from a weight to the importance of each number."""

_CRITERIA = {
    "large_final": "magnitude",
    "squared_final": "squared_magnitude",
    "abs": "magnitude",  # functions, by name
    "square": "squared_magnitude",
    "randn_like": "random",
}

_OUTPUTS = (GROUP, OUTPUT)
_SPANNED: dict[str, tuple[int, ...]] = {
    "shared_weight": _OUTPUTS,
    "channel": (INPUT,),
    "shared_channel": (*_OUTPUTS, INPUT),
    "shared_column": (*_OUTPUTS, ROW),
    "shared_row": (*_OUTPUTS, COLUMN),
    "vertical_slice": (INPUT, ROW),
    "horizontal_slice": (INPUT, COLUMN),
    "shared_vertical_slice": (*_OUTPUTS, INPUT, ROW),
    "shared_horizontal_slice": (*_OUTPUTS, INPUT, COLUMN),
    "shared_kernel": (*_OUTPUTS, DEPTH, ROW, COLUMN),
    "layer": (*_OUTPUTS, INPUT, DEPTH, ROW, COLUMN),
}
_SPANNED_IN_MATRICES: dict[str, tuple[int, ...]] = {"column": _OUTPUTS, "row": (INPUT,)}
_MATRIX_AXES = 3  # of a weight (O, I, K), or two


def spanned(granularity: str) -> Callable[[LayerProfile], tuple[int, ...] | None]:
    """Return, for a layer, the axes along which fasterai zeroes weights together; None where ours of the name does."""

    def axes(layer: LayerProfile) -> tuple[int, ...] | None:
        matrix = len(layer.weight_shape) <= _MATRIX_AXES
        own = _SPANNED_IN_MATRICES.get(granularity) if matrix else None
        return own or _SPANNED.get(granularity)

    return axes


def usual_granularity(granularity: str) -> str:
    """Return the name of a granularity that settings know, for what :func:`spanned` does not answer."""
    return "weight" if granularity in _SPANNED else granularity


def criterion_of(criteria: Criteria) -> tuple[str, Callable[[Tensor], Tensor] | None]:
    """Return the name of the criterion that settings know, and a function of weights where it is none of these.

    An object of fasterai scores with its ``f``, against the weights at the start, which are those of now; one that
    looks at data scores as Wanda does.
    """
    if isinstance(criteria, str):
        return _CRITERIA.get(criteria, criteria), None
    score = getattr(criteria, "f", criteria)
    if not callable(score):
        raise InvalidSpec(
            f"criteria must be a name, fasterai's object, or a function of a weight; got {type(criteria).__name__}."
        )
    if getattr(criteria, "needs_data", False):
        return "wanda", None
    combine = getattr(criteria, "output_fn", None)
    named = _CRITERIA.get(getattr(score, "__name__", ""))
    if named and combine is None:
        return named, None
    return "magnitude", lambda weight: combine(score(weight), score(weight)) if combine else score(weight)
