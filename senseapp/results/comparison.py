"""Runs beside each other: how far their ranks of the layers agree, and which layers moved most."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from senseapp.errors import InvalidSpec
from senseapp.metrics import MetricChange
from senseapp.results.measurement import LayerMeasurement
from senseapp.results.ranking import spearman
from senseapp.results.sensitivity import SensitivityResult, latest


class Part(enum.StrEnum):
    """Which of a run's figures are compared."""

    SHOWN = "shown"
    ESTIMATED = "estimated"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One run at one level.

    Attributes:
        title: what people call the run.
        result: what it found.
        level: the level compared, of the run's own compression.
        part: estimates, measurements, or those shown: measured where there is a measurement, estimated elsewhere.
    """

    title: str
    result: SensitivityResult
    level: float
    part: Part = Part.SHOWN

    def __post_init__(self) -> None:
        if self.level not in self.result.levels:
            known = ", ".join(f"{level:g}" for level in self.result.levels)
            raise InvalidSpec(f"{self.title} was not run at level {self.level:g}. It has {known}.")

    @property
    def measurements(self) -> tuple[LayerMeasurement, ...]:
        """Those of the part and the level."""
        if self.part is Part.SHOWN:
            return self.result.at(self.level)
        items = self.result.estimates if self.part is Part.ESTIMATED else self.result.measurements
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
        estimated: whether a side's change is an estimate.
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
    def shift(self) -> float:
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
        layer: its name.
        missing: for each side one sentence on why it has no value; empty where it has one.
    """

    layer: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two or more sides, seen through one metric.

    Attributes:
        metric: its name.
        sides: what is compared.
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
        return tuple(sorted((layer for layer in self.layers if layer.shift), key=lambda layer: -layer.shift))
