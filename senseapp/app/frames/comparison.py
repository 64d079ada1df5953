"""Data frames of a comparison of runs; its charts, tables and downloads are drawn from these.

The leaderboard as a frame: one row per finished run, numbers as numbers, so that every column sorts.
What a comparison of runs found, in sentences; the page and the command line say the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from senseapp import compressions
from senseapp.app.frames.results import change_figures, row_name
from senseapp.app.words import format as fmt
from senseapp.app.words.wording import caveat_of
from senseapp.metrics import METRICS, number_text
from senseapp.records.comparison import Comparison, MatchedLayer, Part, Side
from senseapp.records.jobs import RunRecord
from senseapp.runs.leaderboard import LeaderboardRow

_LETTERS = "ABCDEFGH"
_TITLE_WIDTH = 28
_PAIR_COLUMNS = (
    "layer", "row", "side", "source", "drop", "low", "high", "change_text", "interval_text", "rank_text", "members",
    "description",
)  # fmt: skip
_SCATTER_COLUMNS = (
    "layer", "row", "members", "side", "x", "y", "x_low", "x_high", "y_low", "y_high", "x_rank", "y_rank", "x_text",
    "y_text", "shift", "description",
)  # fmt: skip


def letter(index: int) -> str:
    """Return the letter that stands for a side where its title would be too long."""
    return _LETTERS[index]


def side_labels(sides: Sequence[Side]) -> list[str]:
    """Return a label for each side that no other has: ``A · demo, 50 %``, or ``A · estimated`` within one run."""
    name = _part_name if len({(side.title, side.level) for side in sides}) == 1 else _full_name
    return [f"{letter(index)} · {name(side)}" for index, side in enumerate(sides)]


def _part_name(side: Side) -> str:
    return "measured" if side.part is Part.MEASURED else "estimated"


def _full_name(side: Side) -> str:
    level = side.result.compression.scale.text(side.level)
    return f"{fmt.cut_middle(side.title, _TITLE_WIDTH)}, {level}"


def pair_frame(comparison: Comparison, *, by_shift: bool = False) -> pd.DataFrame:
    """Return one row per matched layer and side, in network order or those first whose rank moved most."""
    layers = sorted(comparison.layers, key=lambda layer: -layer.rank_change) if by_shift else comparison.layers
    return pd.DataFrame(_pairs(comparison, layers), columns=list(_PAIR_COLUMNS))


def _pairs(comparison: Comparison, layers: Sequence[MatchedLayer]) -> Iterator[dict[str, Any]]:
    metric, labels = METRICS[comparison.metric], side_labels(comparison.sides)
    for layer in layers:
        for index, (change, label) in enumerate(zip(layer.changes, labels, strict=True)):
            figures = change_figures(change, metric, estimated=layer.estimated[index])
            source = _source(layer, index)
            yield figures | {
                "layer": layer.layer,
                "row": row_name(layer),
                "side": label,
                "source": source,
                "rank_text": _rank_text(layer, index, len(comparison.layers)),
                "members": ", ".join(layer.members),
                "description": f"{layer.layer}, {label}: {figures['change_text']}, {source}",
            }


def _source(layer: MatchedLayer, index: int) -> str:
    return "estimated" if layer.estimated[index] else "measured"


def _rank_text(layer: MatchedLayer, index: int, count: int) -> str:
    """Return a rank with the ranks that the noise leaves possible, if any are ruled out: ``3 (2 to 5)``."""
    first, last = layer.rank_ranges[index]
    possible = f" ({first} to {last})" if first < last and (first, last) != (1, count) else ""
    return f"{layer.ranks[index]:g}{possible}"


def scatter_frame(comparison: Comparison) -> pd.DataFrame:
    """Return one row per matched layer and further side: ``x`` is of the first side, ``y`` of the further one."""
    return pd.DataFrame(_points(comparison), columns=list(_SCATTER_COLUMNS))


def _points(comparison: Comparison) -> Iterator[dict[str, Any]]:
    metric, labels = METRICS[comparison.metric], side_labels(comparison.sides)
    for layer in comparison.layers:
        ends = [
            change_figures(change, metric, estimated=estimated)
            for change, estimated in zip(layer.changes, layer.estimated, strict=True)
        ]
        first = ends[0]
        for index, other in enumerate(ends[1:], start=1):
            x_text, y_text = (
                f"{end['change_text']}, rank {layer.ranks[at]:g}" for at, end in ((0, first), (index, other))
            )
            yield {
                "layer": layer.layer,
                "row": row_name(layer),
                "members": ", ".join(layer.members),
                "side": labels[index],
                **{f"x{name}": first[key] for name, key in (("", "drop"), ("_low", "low"), ("_high", "high"))},
                **{f"y{name}": other[key] for name, key in (("", "drop"), ("_low", "low"), ("_high", "high"))},
                "x_rank": layer.ranks[0],
                "y_rank": layer.ranks[index],
                "x_text": x_text,
                "y_text": y_text,
                "shift": abs(layer.ranks[0] - layer.ranks[index]),
                "description": f"{layer.layer}: {x_text} in A; {y_text} in {letter(index)}",
            }


def moves_frame(comparison: Comparison) -> pd.DataFrame:
    """Return the layers whose rank moved, the furthest first: their rank on each side, and whether chance explains it.

    Columns are ``layer``, ``row``, ``shift``, ``fragile_in`` (the side that ranks the layer as more fragile than any
    other does), ``sure`` and, for each side, ``rank_`` and ``change_`` with its letter.
    """
    metric, count = METRICS[comparison.metric], len(comparison.layers)
    sides = range(len(comparison.sides))
    rows = [
        {"layer": layer.layer, "row": row_name(layer), "shift": layer.rank_change}
        | {"fragile_in": letter(min(sides, key=lambda side: layer.ranks[side])), "sure": _sure(layer)}
        | {f"rank_{letter(side)}": _rank_text(layer, side, count) for side in sides}
        | {f"change_{letter(side)}": metric.change_text(layer.changes[side].delta) for side in sides}
        for layer in comparison.most_moved()
    ]
    per_side = [f"{what}_{letter(side)}" for side in sides for what in ("rank", "change")]
    return pd.DataFrame(rows, columns=["layer", "row", "shift", "fragile_in", "sure", *per_side])


def _sure(layer: MatchedLayer) -> str:
    if layer.surely_moved:
        return "yes"
    known = all(change.has_interval for change in layer.changes) and not any(layer.estimated)
    return "no" if known else "unknown"


def agreement_frame(comparison: Comparison) -> pd.DataFrame:
    """Return the rank correlation of each pair of sides: columns ``pair`` (letters), ``spearman``, ``layers``."""
    rows = [
        {
            "pair": f"{letter(first)} and {letter(second)}",
            "spearman": comparison.agreement(first, second),
            "layers": len(comparison.layers),
        }
        for first, second in combinations(range(len(comparison.sides)), 2)
    ]
    return pd.DataFrame(rows, columns=["pair", "spearman", "layers"])


def unmatched_frame(comparison: Comparison) -> pd.DataFrame:
    """Return the layers that lack a value on a side: column ``layer``, and for each side its letter with the reason."""
    rows = [
        {"layer": layer.layer} | {letter(side): reason or "has a value" for side, reason in enumerate(layer.missing)}
        for layer in comparison.unmatched
    ]
    return pd.DataFrame(rows, columns=["layer", *(letter(side) for side in range(len(comparison.sides)))])


def leaderboard_frame(rows: Sequence[LeaderboardRow], records: Mapping[str, RunRecord]) -> pd.DataFrame:
    """Return the rows of runs that are still there, in their order."""
    return pd.DataFrame(
        [
            {
                "title": records[row.run].title,
                "link": f"results?run={row.run}",
                "model": row.model,
                "compression": compressions.get(row.compression).label,
                "levels": compressions.get(row.compression).scale.texts(row.levels),
                "removable": None if row.bytes_removable is None else 100 * row.bytes_removable,
                "told": row.unknown_because or ("predicted" if row.bytes_removable is not None else ""),
                "counted_in": METRICS[row.drop_metric].label if row.drop_metric else "",
                "baseline": None if row.baseline is None else METRICS[row.metric].factor * row.baseline,
                "metric": METRICS[row.metric].label,
                "params": row.num_params or None,
                "images": row.num_images or None,
                "headline": row.headline,
            }
            for row in rows
            if row.run in records
        ]
    )


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
