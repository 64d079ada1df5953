"""Match the layers of several runs by name, and rank them on each side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from senseapp.errors import InvalidSpec
from senseapp.metrics import MetricChange
from senseapp.results.comparison import Comparison, MatchedLayer, Side, UnmatchedLayer
from senseapp.results.measurement import LayerMeasurement, Status
from senseapp.results.ranking import mean_ranks, rank_intervals


def shared_metrics(sides: Sequence[Side]) -> frozenset[str]:
    """Return the metrics that every side has values of."""
    return frozenset.intersection(*(side.metrics for side in sides)) if sides else frozenset()


def compare(sides: Sequence[Side], metric: str) -> Comparison:
    """Match the layers of ``sides`` by name and rank them.

    The figures of a coupled group hold for each of its members, so a pruning run can be compared with one that
    measured each layer alone; members that are together on every side count as one layer.

    Raises:
        InvalidSpec: there are fewer than two sides, or one has no value of ``metric``.
    """
    _check(sides, metric)
    outcomes = _outcomes(sides, metric)
    unmatched = tuple(
        UnmatchedLayer(layer=name, missing=tuple(found if isinstance(found, str) else "" for found in outcome))
        for name, outcome in outcomes.items()
        if any(isinstance(found, str) for found in outcome)
    )
    return Comparison(metric=metric, sides=tuple(sides), layers=_ranked(_rows(outcomes)), unmatched=unmatched)


def _check(sides: Sequence[Side], metric: str) -> None:
    if len(sides) < 2:
        raise InvalidSpec(f"A comparison needs two runs or more, got {len(sides)}. Choose another one.")
    for side in sides:
        if metric not in side.metrics:
            known = ", ".join(sorted(side.metrics)) or "none"
            raise InvalidSpec(
                f"A comparison needs a metric that every run has, and {side.title} has no values of {metric!r} at "
                f"this level. It has: {known}."
            )


class _Found(NamedTuple):
    item: LayerMeasurement
    change: MetricChange


class _Row(NamedTuple):
    members: tuple[str, ...]
    found: tuple[_Found, ...]


_Outcome = _Found | str
"""The change of a layer on one side, or why there is none."""


def _outcomes(sides: Sequence[Side], metric: str) -> dict[str, tuple[_Outcome, ...]]:
    """Return the outcome on every side of each layer that any side looked at, in execution order of the first."""
    by_layer = [{name: item for item in side.measurements for name in item.members or (item.layer,)} for side in sides]
    known = [{layer.name for layer in side.result.profile.layers} for side in sides]
    names = dict.fromkeys(layer.name for side in sides for layer in side.result.profile.layers)
    return {
        name: tuple(
            _outcome(items.get(name), metric, known=name in layers)
            for items, layers in zip(by_layer, known, strict=True)
        )
        for name in names
        if any(name in items for items in by_layer)
    }


def _outcome(item: LayerMeasurement | None, metric: str, *, known: bool) -> _Outcome:
    if item is None:
        return "Not measured." if known else "The model has no layer of this name."
    if item.status is not Status.MEASURED:
        return item.reason or "It could not be measured."
    change = item.change(metric)
    if change is None:
        return "Not measured in this metric."
    return "The figure is not a number." if math.isnan(change.delta) else _Found(item, change)


def _rows(outcomes: dict[str, tuple[_Outcome, ...]]) -> list[_Row]:
    """Return the matched layers; those that share their measurements on every side are one row."""
    together: dict[tuple[str, ...], _Row] = {}
    for name, outcome in outcomes.items():
        found = tuple(entry for entry in outcome if not isinstance(entry, str))
        if len(found) == len(outcome):
            key = tuple(entry.item.layer for entry in found)
            members = together[key].members if key in together else ()
            together[key] = _Row((*members, name), found)
    return list(together.values())


def _ranked(rows: Sequence[_Row]) -> tuple[MatchedLayer, ...]:
    sides = list(zip(*(row.found for row in rows), strict=True))
    ranks = zip(*(mean_ranks([-entry.change.delta for entry in side]) for side in sides), strict=True)
    ranges = zip(*map(_ranges, sides), strict=True)
    return tuple(
        MatchedLayer(
            layer=row.members[0],
            members=row.members,
            changes=tuple(entry.change for entry in row.found),
            estimated=tuple(entry.item.estimated for entry in row.found),
            ranks=rank,
            rank_ranges=possible,
        )
        for row, rank, possible in zip(rows, ranks, ranges, strict=True)
    )


def _ranges(side: Sequence[_Found]) -> list[tuple[int, int]]:
    """Return the ranks that the noise leaves possible; an estimate has no interval and could lie anywhere."""
    lows = [math.nan if entry.item.estimated else entry.change.ci_low for entry in side]
    highs = [math.nan if entry.item.estimated else entry.change.ci_high for entry in side]
    return rank_intervals(lows, highs)
