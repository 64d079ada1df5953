"""What a comparison of runs found, in sentences; the page and the command line say the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

from senseapp.metrics import METRICS, number_text
from senseapp.results.comparison import Comparison, Part, Side
from senseapp.ui import format as fmt
from senseapp.ui.comparison_frames import letter
from senseapp.ui.wording import caveat_of

_WORDS = ((0.9, "almost alike"), (0.7, "much alike"), (0.4, "only partly alike"), (-0.4, "differently"))
_OPPOSITE = "in the opposite order"


def finding(comparison: Comparison) -> str:
    """Say how far the sides rank the layers alike: Spearman, over how many layers, and which moves are no chance."""
    count = len(comparison.layers)
    if count < 2:
        return f"{'Only one' if count else 'No'} layer has a value in every run, so there are no ranks to compare."
    values = [comparison.agreement(0, other) for other in range(1, len(comparison.sides))]
    if any(math.isnan(value) for value in values):
        return "In one of the runs every layer loses the same, so there is no order to compare."
    if len(values) > 1:
        found = ", ".join(f"{_number(value)} for {letter(side)}" for side, value in enumerate(values, start=1))
        return f"Rank correlation with A over {count} layers: {found}.{_sure_moves(comparison)}"
    return (
        f"{_subject(comparison)} rank {count} layers {_alike(values[0])}: rank correlation {_number(values[0])}."
        f"{_sure_moves(comparison)}"
    )


def _subject(comparison: Comparison) -> str:
    parts = {side.part for side in comparison.sides}
    return "Estimate and measurement" if parts == {Part.ESTIMATED, Part.MEASURED} else "A and B"


def _number(value: float) -> str:
    return number_text(value, digits=2)


def _alike(value: float) -> str:
    return next((words for least, words in _WORDS if value >= least), _OPPOSITE)


def _sure_moves(comparison: Comparison) -> str:
    """Count the moves that are no chance; say nothing where some figures have no interval."""
    known = all(change.has_interval for layer in comparison.layers for change in layer.changes)
    if not known or any(any(layer.estimated) for layer in comparison.layers):
        return ""
    sure = sum(layer.surely_moved for layer in comparison.layers)
    return f" {fmt.plural(sure, 'layer') if sure else 'No layer'} moved by more than chance."


def matching_text(comparison: Comparison) -> str:
    """Say in which metric, how many layers are matched, and how many lack a value in which run."""
    parts = [
        METRICS[comparison.metric].label,
        "Spearman's rank correlation",
        f"{fmt.plural(len(comparison.layers), 'layer')} matched by name",
    ]
    lacking = [
        sum(bool(layer.missing[side]) for layer in comparison.unmatched) for side in range(len(comparison.sides))
    ]
    missing = [f"{count} without a value in {letter(side)}" for side, count in enumerate(lacking) if count]
    return " · ".join(parts + missing)


def caveat_of_sides(sides: Sequence[Side]) -> str:
    """Return which sides are indicative only, and why; empty where none is."""
    found = [(letter(index), caveat_of(side.result)) for index, side in enumerate(sides)]
    return "; ".join(f"{name}: {caveat}" for name, caveat in found if caveat)
