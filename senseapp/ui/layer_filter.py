"""Which layers of a run are drawn: those of a block or type, with a part of a name, and how many of them."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import pandas as pd

from senseapp.ui.frames import at_level


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFilter:
    """What a layer must be like; an empty field asks for nothing.

    Attributes:
        name: a part of the name, or a pattern such as ``layer1.*.conv2``.
        blocks: names of blocks, one of which holds the layer.
        types: class names, one of which the layer has.
    """

    name: str = ""
    blocks: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of ``frame``, of a coupled group if one of its members fits."""
        fits = {members: any(self._takes(name) for name in members.split(", ")) for members in set(frame["members"])}
        chosen = frame["members"].map(fits).astype(bool)
        if self.types:
            chosen &= frame["layer_type"].isin(self.types)
        return frame[chosen]

    def _takes(self, layer: str) -> bool:
        part = self.name.strip().lower()
        pattern = part if "*" in part or "?" in part else f"*{part}*"
        inside = not self.blocks or any(layer.startswith(f"{block}.") for block in self.blocks)
        return inside and fnmatchcase(layer.lower(), pattern)


def types_of(frame: pd.DataFrame) -> list[str]:
    """Return the types of the layers in network order; none where they are unknown."""
    return [name for name in dict.fromkeys(frame["layer_type"]) if name]


def most_fragile(frame: pd.DataFrame, level: float, number: int) -> list[str]:
    """Return ``row`` of the ``number`` most fragile layers of ``frame`` at ``level``, in network order."""
    worst = set(at_level(frame, level, by_sensitivity=True)["row"].head(number))
    return [row for row in dict.fromkeys(frame["row"]) if row in worst]
