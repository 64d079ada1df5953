"""How long each layer takes at each level, measured in some runtime, and what conversions between layers cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from senseapp.core.codec import register
from senseapp.descriptions import LevelScale

FLOAT, INT8 = "(float)", "(int8)"
"""Stand for a neighbour that is always one or the other: the input and the output, and additions between layers."""
INT8_BITS = 8
MILLISECONDS = "ms"
"""What :attr:`~senseapp.records.schedule.Schedule.achieved` calls the time of one call of the whole network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Of one layer at one level: a fraction or bits; 0 or 32 as it is."""

    layer: str
    level: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What it costs that one of two neighbours computes in int8 and the other in float."""

    first: str
    second: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Times of the layers of one network.

    Attributes:
        other_seconds: what no layer takes.
        source: where they come from, in a few words: the name of a file, or a processor and its runtime.
        measured_here: whether on this machine, so that a schedule can be measured before it is offered.
        unmatched: names in the source that are of no layer.
        notes: sentences on how the source was read.
    """

    times: tuple[LayerTime, ...]
    other_seconds: float = 0.0
    conversions: tuple[Conversion, ...] = ()
    source: str = ""
    measured_here: bool = False
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def layers(self) -> set[str]:
        """Return the layers with a time."""
        return {each.layer for each in self.times}

    def seconds(self, layer: str, level: float, scale: LevelScale) -> float:
        """Return the time of ``layer`` at ``level``: at the nearest level as gentle or gentler that has one.

        Bits below the fewest are stored in those, and what lies between two widths takes the time of the wider. A
        layer without times takes none.
        """
        own = {scale.untouched if each.level == 0 else each.level: each.seconds for each in self.times
               if each.layer == layer}  # fmt: skip
        gentler = [each for each in own if scale.strength(each) <= scale.strength(level)]
        return own[max(gentler, key=scale.strength)] if gentler else max(own.values(), default=0.0)

    def whole(self, levels: Mapping[str, float], scale: LevelScale, *, int8: Collection[str]) -> float:
        """Return the seconds of the network with layers at ``levels``, others as they are, and those of ``int8`` so."""
        own = sum(self.seconds(layer, levels.get(layer, scale.untouched), scale) for layer in self.layers())
        if not int8:
            return own + self.other_seconds
        inside = {INT8, *int8}
        crossed = sum(each.seconds for each in self.conversions if (each.first in inside) != (each.second in inside))
        return own + crossed + self.other_seconds


register(LayerTimes)
