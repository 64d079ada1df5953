"""What every target format promises, and the checks that all of them share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from senseapp.compressions import Effect, get, names
from senseapp.core.errors import InvalidSchedule
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule

_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """One target format: who reads it, what it can say, and how it is written.

    Attributes:
        name: what ``--format`` takes; people see ``title``.
        reader: one line on which tool reads it, and how.
        suffix: of the file name, with its dot; unique, so that a zip holds one file per format.
        compressions: the names of those that the format can express; None for any.
        render: writes a checked schedule; None if the file needs the network itself (Model Explorer).
        companion: name and text of a file that belongs beside it.
        mixes: whether one file can hold several compressions at once.
    """

    name: str
    title: str
    reader: str
    suffix: str
    render: Callable[[Schedule, ModelProfile], str] | None
    compressions: tuple[str, ...] | None = None
    companion: tuple[str, str] | None = None
    mixes: bool = False

    def refusal(self, schedule: Schedule) -> str:
        """Return why this format cannot hold ``schedule``, as one sentence; empty if it can."""
        used = {entry.compression for entry in schedule.entries} - {"none"}
        held = names() if self.compressions is None else self.compressions
        if unsupported := sorted(used - set(held)):
            return (
                f"{self.title} files hold {' and '.join(held)} targets, but this schedule contains "
                f"{' and '.join(unsupported)}. Choose another format."
            )
        if len(used) > 1 and not self.mixes:
            return (
                f"A {self.title} file holds one compression, but this schedule contains {' and '.join(sorted(used))}. "
                "Choose JSON, CSV or YAML."
            )
        if self.render is None:
            return f"A {self.title} file needs the network itself; write it with model_explorer_overlay."
        return ""

    def write(self, schedule: Schedule, profile: ModelProfile) -> str:
        """Return the text of the file.

        Raises:
            InvalidSchedule: the schedule belongs to another model, is out of range, or cannot be expressed.
        """
        check_schedule(schedule, profile)
        refusal = self.refusal(schedule)
        if refusal or self.render is None:
            raise InvalidSchedule(refusal)
        return self.render(schedule, profile)


def check_schedule(schedule: Schedule, profile: ModelProfile) -> None:
    """Raise InvalidSchedule unless every name is a layer of ``profile`` and every level is in range."""
    known = {layer.name for layer in profile.layers}
    named = {name: None for entry in schedule.entries for name in (entry.layer, *entry.members)}
    missing = [name for name in named if name not in known]
    if missing:
        shown = ", ".join(missing[:_NAMES_SHOWN]) + (", …" if len(missing) > _NAMES_SHOWN else "")
        raise InvalidSchedule(
            f"This schedule is for another model: {len(missing)} of its {len(named)} layers do not exist in "
            f"{profile.title} ({shown}). Choose the schedule that was made for this model."
        )
    for entry in schedule.entries:
        if entry.compression == "none":
            continue
        if entry.compression not in names():
            raise InvalidSchedule(
                f"The compression of {entry.layer} must be one of {', '.join(names())} or none, "
                f"got {entry.compression!r}."
            )
        scale = get(entry.compression).scale
        if not scale.allows(entry.level):
            raise InvalidSchedule(
                f"The {entry.compression} level of {entry.layer} must be {scale.rule}, got {entry.level}."
            )


def json_text(values: object) -> str:
    """Return ``values`` as the indented JSON of a file."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def fractions_by_layer(schedule: Schedule) -> dict[str, float]:
    """Return the fraction of every layer that loses weights or channels, group members included."""
    return levels_by_layer(schedule, Effect.ZEROS, Effect.CHANNELS)


def bits_of(schedule: Schedule) -> dict[str, int]:
    """Return the bits of every layer whose weights have fewer."""
    return {layer: int(level) for layer, level in levels_by_layer(schedule, Effect.BITS).items()}


def levels_by_layer(schedule: Schedule, *effects: Effect) -> dict[str, float]:
    """Return the level of every layer whose compression has one of ``effects``, group members included."""
    return {
        member: entry.level
        for entry in schedule.entries
        if entry.compression != "none" and get(entry.compression).effect in effects
        for member in entry.members
    }
