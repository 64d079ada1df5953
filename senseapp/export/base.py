"""What every target format promises, and the checks that all of them share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from senseapp.errors import InvalidSchedule
from senseapp.results import ModelProfile, Schedule, ScheduleEntry

ALL_COMPRESSIONS = ("sparsity", "pruning", "quantization")
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """One target format: who reads it, what it can say, and how it is written.

    Attributes:
        name: what ``--format`` takes.
        title: the name people see.
        reader: one line on which tool reads it, and how.
        suffix: of the file name, with its dot; unique, so that a zip holds one file per format.
        compressions: what the format can express.
        render: writes a checked schedule; None if the file needs the network itself (Model Explorer).
        companion: name and text of a file that belongs beside it; None if the format needs none.
        mixes: whether one file can hold several compressions at once.
    """

    name: str
    title: str
    reader: str
    suffix: str
    compressions: tuple[str, ...]
    render: Callable[[Schedule, ModelProfile], str] | None
    companion: tuple[str, str] | None = None
    mixes: bool = False

    def refusal(self, schedule: Schedule) -> str:
        """Return why this format cannot hold ``schedule``, as one sentence; empty if it can."""
        used = {entry.compression for entry in schedule.entries} - {"none"}
        if unsupported := sorted(used - set(self.compressions)):
            return (
                f"{self.title} files hold {' and '.join(self.compressions)} targets, but this schedule contains "
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
    """Require every name to be a layer of ``profile`` and every level to be in range.

    Raises:
        InvalidSchedule: names the first layers that do not exist, or the first level out of range.
    """
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
        _check_level(entry)


def _check_level(entry: ScheduleEntry) -> None:
    if entry.compression == "none":
        return
    if entry.compression == "quantization":
        in_range = math.isfinite(entry.level) and entry.level == int(entry.level) and 2 <= entry.level <= 8
        expected = "a whole number of bits from 2 to 8"
    elif entry.compression in ALL_COMPRESSIONS:
        in_range = math.isfinite(entry.level) and 0 < entry.level < 1
        expected = "above 0 % and below 100 % (a fraction from 0 to 1 inside senseapp)"
    else:
        raise InvalidSchedule(
            f"The compression of {entry.layer} must be one of {', '.join(ALL_COMPRESSIONS)} or none, "
            f"got {entry.compression!r}."
        )
    if not in_range:
        raise InvalidSchedule(f"The {entry.compression} level of {entry.layer} must be {expected}, got {entry.level}.")


def percent(fraction: float) -> float:
    """Return ``fraction`` in percent without binary dust (0.07 becomes 7.0, not 7.000000000000001)."""
    return round(100 * fraction, 10)


def fractions_by_layer(schedule: Schedule) -> dict[str, float]:
    """Return the fraction of every layer that loses weights or channels, group members included."""
    return {
        member: entry.level
        for entry in schedule.entries
        if entry.compression in ("sparsity", "pruning")
        for member in entry.members
    }


def bits_of(schedule: Schedule) -> dict[str, int]:
    """Return the bits of every quantized layer."""
    return {
        member: int(entry.level)
        for entry in schedule.entries
        if entry.compression == "quantization"
        for member in entry.members
    }
