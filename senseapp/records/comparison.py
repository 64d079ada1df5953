"""Comparison of runs: layers matched by name, their ranks on each side, and which moved most."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from senseapp.core.errors import InvalidSpec
from senseapp.metrics import MetricChange
from senseapp.records.measurement import LayerMeasurement, RunResult, Status, latest
from senseapp.records.resolution import mean_ranks, rank_intervals, spearman


class ComparedPart(enum.StrEnum):
    """Which of a run's figures are compared."""

    SHOWN = "shown"
    ESTIMATED = "estimated"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One run at one level.

    Attributes:
        title: what people call the run.
        level: of the run's own compression.
        part: estimates, measurements, or those shown: measured where there is a measurement, estimated elsewhere.
    """

    title: str
    result: RunResult
    level: float
    part: ComparedPart = ComparedPart.SHOWN

    def __post_init__(self) -> None:
        if self.level not in self.result.levels:
            known = ", ".join(f"{level:g}" for level in self.result.levels)
            raise InvalidSpec(f"{self.title} was not run at level {self.level:g}. It has {known}.")

    @property
    def measurements(self) -> tuple[LayerMeasurement, ...]:
        """Those of the part and the level."""
        if self.part is ComparedPart.SHOWN:
            return self.result.at(self.level)
        items = self.result.estimates if self.part is ComparedPart.ESTIMATED else self.result.measurements
        return tuple(item for item in latest(items) if item.level == self.level)

    @property
    def metrics(self) -> frozenset[str]:
        """Those that any layer has a value of."""
        return frozenset(change.metric for item in self.measurements for change in item.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedLayer:
    """A layer that has a value on every side. Entries of the tuples are in the order of the sides.

    Attributes:
        layer: its name; of layers that are compressed together on every side, the first.
        members: all of those layers.
        changes: of the metric.
        ranks: 1 is the most fragile of the matched layers; equal changes take their mean rank.
        rank_ranges: best and worst rank that the 95 % intervals leave possible.
    """

    layer: str
    members: tuple[str, ...]
    changes: tuple[MetricChange, ...]
    estimated: tuple[bool, ...]
    ranks: tuple[float, ...]
    rank_ranges: tuple[tuple[int, int], ...]

    @property
    def rank_change(self) -> float:
        """Places between its best and its worst rank over the sides."""
        return max(self.ranks) - min(self.ranks)

    @property
    def surely_moved(self) -> bool:
        """Whether its ranks on two sides differ by more than the intervals explain."""
        return max(first for first, _ in self.rank_ranges) > min(last for _, last in self.rank_ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedLayer:
    """A layer without a value on at least one side.

    Attributes:
        missing: for each side one sentence on why it has no value; empty where it has one.
    """

    layer: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two or more sides, seen through one metric.

    Attributes:
        layers: those with a value on every side, in execution order of the first.
        unmatched: all others.
    """

    metric: str
    sides: tuple[Side, ...]
    layers: tuple[MatchedLayer, ...]
    unmatched: tuple[UnmatchedLayer, ...]

    def agreement(self, first: int = 0, second: int = 1) -> float:
        """Return Spearman's rank correlation of two sides over the matched layers; nan where there is no order."""
        drops = [[layer.changes[side].delta for layer in self.layers] for side in (first, second)]
        return spearman(*drops)

    def most_moved(self) -> tuple[MatchedLayer, ...]:
        """Return the layers whose rank differs between sides, those that moved furthest first."""
        return tuple(
            sorted((layer for layer in self.layers if layer.rank_change), key=lambda layer: -layer.rank_change)
        )


def shared_metrics(sides: Sequence[Side]) -> frozenset[str]:
    """Return the metrics that every side has values of."""
    return frozenset.intersection(*(side.metrics for side in sides)) if sides else frozenset()


def are_one_network(sides: Sequence[Side]) -> bool:
    """Return whether layers of one name are the same layers on all sides.

    They are where at least half of the names are known to each side, and no layer has another number of weights.
    """
    first, *others = ({layer.name: layer.num_params for layer in side.result.profile.layers} for side in sides)
    sized = all(side.result.profile.sizes_known for side in sides)
    for other in others:
        shared = first.keys() & other.keys()
        if 2 * len(shared) < min(len(first), len(other)) or (
            sized and any(first[name] != other[name] for name in shared)
        ):
            return False
    return True


def compare(sides: Sequence[Side], metric: str) -> Comparison:
    """Match the layers of ``sides`` by name and rank them; raises InvalidSpec where they cannot be compared.

    The figures of a coupled group hold for each of its members, so a pruning run can be compared with one that
    measured each layer alone; members that are together on every side count as one layer.
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
    rows: dict[tuple[str, ...], _Row] = {}
    for name, outcome in outcomes.items():
        found = tuple(entry for entry in outcome if not isinstance(entry, str))
        if len(found) == len(outcome):
            key = tuple(entry.item.layer for entry in found)
            members = rows[key].members if key in rows else ()
            rows[key] = _Row((*members, name), found)
    return list(rows.values())


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
