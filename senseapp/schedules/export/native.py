"""The content of our own JSON, YAML and CSV files, and the way back to a schedule.

All three say levels the way people do, with the unit beside each (percent, bits). JSON and YAML hold the whole
schedule; CSV holds its rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from senseapp.compressions import get, names
from senseapp.core.errors import InvalidSchedule, InvalidSpec
from senseapp.records.schedule import ResourceBudget, Schedule, ScheduleEntry

FORMAT_NAME = "senseapp-schedule"
VERSION = 1
ROW_FIELDS = ("layer", "members", "compression", "level", "unit", "predicted_damage", "locked")
_NONE = "none"
_ACHIEVED_MEANS = (
    "Predicted from the layers' costs: fractions removed of weights, of bytes if zeros are stored sparse and weights "
    "at their bits, and of multiply-accumulates; average bits of a weight. No sizes of files."
)


def row_of(entry: ScheduleEntry) -> dict[str, Any]:
    """Return one entry as the plain values of :data:`ROW_FIELDS`."""
    return {
        "layer": entry.layer,
        "members": list(entry.members),
        "compression": entry.compression,
        "level": entry.level if entry.compression == _NONE else get(entry.compression).scale.shown(entry.level),
        "unit": _unit(entry.compression),
        "predicted_damage": entry.predicted_damage,
        "locked": entry.locked,
    }


def payload_of(schedule: Schedule) -> dict[str, Any]:
    """Return the whole schedule as plain JSON values."""
    budget = schedule.budget
    return {
        "format": FORMAT_NAME,
        "version": VERSION,
        "model": schedule.model,
        "method": schedule.method,
        "metric": schedule.metric,
        "budget": None if budget is None else {"kind": budget.kind, "target": budget.target},
        "predicted_damage": schedule.predicted_damage,
        "achieved": dict(schedule.achieved),
        "achieved_means": _ACHIEVED_MEANS,
        "notes": list(schedule.notes),
        "layers": [row_of(entry) for entry in schedule.entries],
    }


def schedule_from_payload(payload: object) -> Schedule:
    """Rebuild a schedule from what :func:`payload_of` returned.

    Raises:
        InvalidSchedule: the content is not a schedule of ours, is of a newer version, or has a field of a wrong form.
    """
    if not isinstance(payload, Mapping) or payload.get("format") != FORMAT_NAME:
        raise InvalidSchedule(
            f'A schedule file starts with "format: {FORMAT_NAME}"; this one does not. '
            "Choose a JSON, YAML or CSV file that senseapp wrote."
        )
    if payload.get("version") != VERSION:
        raise InvalidSchedule(
            f"This schedule file has version {payload.get('version')!r}; this senseapp reads version {VERSION}. "
            "Update senseapp, or export the schedule again."
        )
    try:
        return Schedule(
            model=str(payload["model"]),
            method=str(payload["method"]),
            entries=tuple(_entry_of(row) for row in payload["layers"]),
            budget=ResourceBudget(**payload["budget"]) if payload["budget"] else None,
            metric=str(payload["metric"]),
            predicted_damage=float(payload["predicted_damage"]),
            achieved={str(kind): float(value) for kind, value in payload["achieved"].items()},
            notes=tuple(str(note) for note in payload["notes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(error) from error


def schedule_from_rows(rows: list[dict[str, Any]], *, model: str) -> Schedule:
    """Build a ``manual`` schedule for ``model`` from rows alone; their predicted damage is added up.

    Raises:
        InvalidSchedule: a row lacks a field or has one of a wrong form.
    """
    try:
        entries = tuple(_entry_of(row) for row in rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(error) from error
    damage = sum(entry.predicted_damage for entry in entries)
    return Schedule(model=model, method="manual", entries=entries, predicted_damage=damage)


def _damaged(error: Exception) -> InvalidSchedule:
    if isinstance(error, InvalidSpec):
        return InvalidSchedule(str(error))
    reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
    return InvalidSchedule(f"This schedule file is damaged: {reason}. Export it again.")


def _entry_of(row: Mapping[str, Any]) -> ScheduleEntry:
    layer, compression = str(row["layer"]), str(row["compression"])
    if compression not in (known := (*names(), _NONE)):
        raise InvalidSchedule(f"The compression of {layer} must be one of {', '.join(known)}, got {compression!r}.")
    if row["unit"] != (unit := _unit(compression)):
        raise InvalidSchedule(f"The level of {layer} must be given in {unit or 'no unit'}, got {row['unit']!r}.")
    level = float(row["level"])
    if compression == _NONE and level != 0:
        raise InvalidSchedule(f"{layer} is left alone (compression none), so its level must be 0, got {level}.")
    return ScheduleEntry(
        layer=layer,
        members=tuple(str(member) for member in row["members"]),
        compression=compression,
        level=level if compression == _NONE else get(compression).scale.from_shown(level),
        predicted_damage=_finite(row["predicted_damage"], layer),
        locked=bool(row["locked"]),
    )


def _unit(compression: str) -> str:
    return "" if compression == _NONE else get(compression).scale.unit


def _finite(value: float | str, layer: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise InvalidSchedule(f"The predicted damage of {layer} must be a finite number, got {value}.")
    return number
