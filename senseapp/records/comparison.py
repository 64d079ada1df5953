"""Comparison of runs: layers matched by name, their ranks on each side, and which moved most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import grouped
from senseapp.metrics import MetricChange
from senseapp.records.measurement import LayerMeasurement, RunResult, Status, latest
from senseapp.records.resolution import rank_intervals, spearman

ComparedPart = Literal["shown", "estimated", "measured"]
"""Which of a run's figures are compared: those shown are measured where possible, estimated elsewhere."""
BOTH_PARTS: tuple[ComparedPart, ...] = ("estimated", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One run, under the title that people give it, at one level of its own compression."""

    title: str
    result: RunResult
    level: float
    part: ComparedPart = "shown"

    def __post_init__(self) -> None:
        if self.level not in self.result.levels:
            known = ", ".join(f"{level:g}" for level in self.result.levels)
            raise InvalidSpec(f"{self.title} was not run at level {self.level:g}. It has {known}.")

    @property
    def measurements(self) -> tuple[LayerMeasurement, ...]:
        """Those of the part and the level."""
        if self.part == "shown":
            return self.result.at(self.level)
        items = self.result.estimates if self.part == "estimated" else self.result.measurements
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
class Comparison:
    """Two or more sides, seen through one metric, with the layers that have a value on each, in order of the first.

    ``unmatched`` has of all others, by name, for each side a sentence on why there is no value; empty where there is.
    """

    metric: str
    sides: tuple[Side, ...]
    layers: tuple[MatchedLayer, ...]
    unmatched: dict[str, tuple[str, ...]]

    def agreement(self, first: int = 0, second: int = 1) -> float:
        """Return Spearman's rank correlation of two sides over the matched layers; nan where there is no order."""
        return spearman(*([layer.changes[side].delta for layer in self.layers] for side in (first, second)))


def shared_metrics(sides: Sequence[Side]) -> frozenset[str]:
    """Return the metrics that every side has values of."""
    return frozenset.intersection(*(side.metrics for side in sides)) if sides else frozenset()


def are_one_network(sides: Sequence[Side]) -> bool:
    """Return whether layers of one name are the same layers on all sides.

    They are where at least half of the names are known to each side, and no layer has another number of weights.
    """
    first, *others = ({layer.name: layer.num_params for layer in side.result.profile.layers} for side in sides)
    sized = all(side.result.profile.sizes_known for side in sides)
    return all(
        2 * len(shared := first.keys() & other.keys()) >= min(len(first), len(other))
        and not (sized and any(first[name] != other[name] for name in shared))
        for other in others
    )


def compare(sides: Sequence[Side], metric: str) -> Comparison:
    """Match the layers of ``sides`` by name and rank them; raises InvalidSpec where they cannot be compared.

    The figures of a coupled group hold for each of its members, so a pruning run can be compared with one that
    measured each layer alone; members that are together on every side count as one layer.
    """
    if len(sides) < 2:
        raise InvalidSpec(f"A comparison needs two runs or more, got {len(sides)}. Choose another one.")
    for side in sides:
        if metric not in side.metrics:
            known = ", ".join(sorted(side.metrics)) or "none"
            raise InvalidSpec(
                f"A comparison needs a metric that every run has, and {side.title} has no values of {metric!r} at "
                f"this level. It has: {known}."
            )
    measured = [{name: item for item in side.measurements for name in item.members or (item.layer,)} for side in sides]
    named = [{layer.name for layer in side.result.profile.layers} for side in sides]
    missing = {
        name: tuple(
            _why_missing(found.get(name), metric, known=name in layers)
            for found, layers in zip(measured, named, strict=True)
        )
        for name in dict.fromkeys(layer.name for side in sides for layer in side.result.profile.layers)
        if any(name in found for found in measured)
    }
    together = grouped(  # names by the layers that stand for them on each side
        (tuple(found[name].layer for found in measured), name) for name, reasons in missing.items() if not any(reasons)
    )
    groups = list(together.values())
    layers = _ranked([[found[names[0]] for names in groups] for found in measured], groups, metric)
    unmatched = {name: reasons for name, reasons in missing.items() if any(reasons)}
    return Comparison(metric=metric, sides=tuple(sides), layers=layers, unmatched=unmatched)


def _why_missing(item: LayerMeasurement | None, metric: str, *, known: bool) -> str:
    """Return why a layer has no value on one side; empty where it has one."""
    if item is None:
        return "Not measured." if known else "The model has no layer of this name."
    if item.status is not Status.MEASURED:
        return item.reason or "It could not be measured."
    change = item.change(metric)
    if change is None:
        return "Not measured in this metric."
    return "The figure is not a number." if math.isnan(change.delta) else ""


def _ranked(
    sides: Sequence[Sequence[LayerMeasurement]], groups: Sequence[Sequence[str]], metric: str
) -> tuple[MatchedLayer, ...]:
    """Rank the measurements of matched ``groups`` of names; an estimate has no interval and could lie anywhere."""
    from pandas import Series

    changes = [[change for item in side if (change := item.change(metric)) is not None] for side in sides]
    ranks, ranges = [], []
    for items, found in zip(sides, changes, strict=True):
        ranks.append(Series([-change.delta for change in found], dtype=float).rank().tolist())
        unknown = [item.estimated for item in items]
        ends = ([getattr(change, end) for change in found] for end in ("ci_low", "ci_high"))
        ranges.append(rank_intervals(*(np.where(unknown, math.nan, end).tolist() for end in ends)))
    return tuple(
        MatchedLayer(
            layer=names[0],
            members=tuple(names),
            changes=tuple(side[place] for side in changes),
            estimated=tuple(side[place].estimated for side in sides),
            ranks=tuple(side[place] for side in ranks),
            rank_ranges=tuple(side[place] for side in ranges),
        )
        for place, names in enumerate(groups)
    )
