"""Our own JSON, YAML and CSV files, with levels in percent or bits, and the way back to a schedule."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from senseapp.core.errors import InvalidSchedule, InvalidSpec, first_line_of
from senseapp.core.foreign_values import (
    BadValue,
    is_int,
    items,
    mapping,
    number,
    read_json,
    read_yaml,
    shown,
    text,
    texts,
    truth,
)
from senseapp.core.tables import TableError, TableRecord, column_key, decoded_text, read_records
from senseapp.core.texts import csv_text, printable
from senseapp.descriptions import get, names
from senseapp.formats.base import ExportFormat, json_text
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import ResourceBudget, Schedule, ScheduleEntry, check_schedule

_FORMAT_NAME = "senseapp-schedule"
_VERSION = 1  # raised when a file of the format could not be read by an older senseapp
_ROW_FIELDS = ("layer", "members", "compression", "level", "unit", "predicted_damage", "locked")
_NONE = "none"
_COMMENT = "# "  # at the end of a CSV file
_USAGE = "python -m senseapp apply --run RUN --schedule FILE --out compressed.safetensors"
_TRUTH = {"true": True, "false": False}
_ACHIEVED_MEANS = (
    "Predicted from the layers' costs: fractions removed of weights, of bytes if zeros are stored sparse and weights "
    "at their bits, and of multiply-accumulates; average bits of a weight. No sizes of files."
)


def _row_of(entry: ScheduleEntry) -> dict[str, Any]:
    """Return one entry as the plain values of ``_ROW_FIELDS``."""
    return {
        "layer": entry.layer,
        "members": list(entry.members),
        "compression": entry.compression,
        "level": entry.level if entry.compression == _NONE else get(entry.compression).scale.shown(entry.level),
        "unit": _unit(entry.compression),
        "predicted_damage": entry.predicted_damage,
        "locked": entry.locked,
    }


def _payload_of(schedule: Schedule) -> dict[str, Any]:
    """Return the whole schedule as plain JSON values."""
    budget = schedule.budget
    return {
        "format": _FORMAT_NAME,
        "version": _VERSION,
        "model": schedule.model,
        "method": schedule.method,
        "metric": schedule.metric,
        "budget": None if budget is None else {"kind": budget.kind, "target": budget.target},
        "predicted_damage": schedule.predicted_damage,
        "achieved": dict(schedule.achieved),
        "achieved_means": _ACHIEVED_MEANS,
        "notes": list(schedule.notes),
        "file_notes": list(schedule.file_notes),
        "layers": [_row_of(entry) for entry in schedule.entries],
    }


def _csv(schedule: Schedule, profile: ModelProfile, notes: Sequence[str]) -> str:
    rows = (
        _row_of(entry) | {"members": " ".join(entry.members), "locked": str(entry.locked).lower()}
        for entry in schedule.entries
    )
    lines = ([row[name] for name in _ROW_FIELDS] for row in rows)
    return csv_text(_ROW_FIELDS, [*lines, *([_COMMENT + note] for note in notes)])


CSV = ExportFormat(
    name="csv",
    title="CSV",
    reader="Spreadsheets and senseapp apply: one row per layer, levels in percent or bits.",
    suffix=".csv",
    usage=_USAGE,
    render=_csv,
    mixes=True,
)
JSON = ExportFormat(
    name="json",
    title="JSON",
    reader="senseapp apply and your own scripts: the whole schedule, levels in percent or bits.",
    suffix=".json",
    usage=_USAGE,
    render=lambda schedule, profile, notes: json_text(_payload_of(schedule)),
    mixes=True,
)
YAML = ExportFormat(
    name="yaml",
    title="YAML",
    reader="senseapp apply and your own scripts: the same content as the JSON.",
    suffix=".yaml",
    usage=_USAGE,
    render=lambda schedule, profile, notes: yaml.safe_dump(_payload_of(schedule), sort_keys=False, allow_unicode=True),
    mixes=True,
)


def read_schedule(file: str | bytes, profile: ModelProfile) -> Schedule:
    """Read our JSON, YAML or CSV (recognised by its content) as a schedule for the model of ``profile``.

    The rows of a CSV give a ``manual`` schedule, whose predicted damage is theirs added up.

    Raises InvalidSchedule for another file, one of a newer version or another model (the first missing layers are
    named), and values that are damaged or out of range.
    """
    try:
        content = decoded_text(file)
    except TableError as error:
        raise InvalidSchedule(f"This schedule file cannot be read. {error}") from error
    try:
        if _is_table(content):
            rows, notes = _rows_from_table(content)
            entries = tuple(map(_entry_of, rows))
            damage = sum(entry.predicted_damage for entry in entries)
            schedule = Schedule(
                model=profile.title, method="manual", entries=entries, predicted_damage=damage, notes=notes
            )
        else:
            schedule = _schedule_from_payload(_plain_values(content))
    except InvalidSpec as error:
        raise InvalidSchedule(str(error)) from error
    except (KeyError, BadValue) as error:
        reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise InvalidSchedule(f"This schedule file is damaged: {reason}. Export it again.") from error
    check_schedule(schedule, profile)
    return schedule


def _is_table(content: str) -> bool:
    """Return whether the first line names columns of a table."""
    lines = (line.strip() for line in content.splitlines())
    first = next((line for line in lines if line and not line.lower().strip('"').startswith(("#", "sep="))), "")
    return len({*map(column_key, re.split(r"[,;\t|]", first))}.intersection(map(column_key, _ROW_FIELDS))) > 1


def _rows_from_table(content: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    try:
        rows, notes = read_records(content, _ROW_FIELDS)
    except TableError as error:
        raise InvalidSchedule(
            f"This schedule file cannot be read. {error} A schedule CSV has the columns {','.join(_ROW_FIELDS)}."
        ) from error
    return [_values_of(row) for row in rows], notes


def _values_of(row: TableRecord) -> dict[str, Any]:
    try:
        numbers = {name: row.number(name) for name in ("level", "predicted_damage")}
        locked = truth(_TRUTH.get(row.cells["locked"].lower()), "the last one")
    except BadValue as error:
        raise InvalidSchedule(
            f"Line {row.line} of this CSV needs {len(_ROW_FIELDS)} values, the level and predicted damage as numbers "
            f"and the last one true or false; it has {printable(','.join(row.cells.values()))!r}."
        ) from error
    return {**row.cells, **numbers, "members": row.cells["members"].split(), "locked": locked}


def _plain_values(content: str) -> object:
    try:
        return read_json(content) if content.lstrip().startswith("{") else read_yaml(content)
    except BadValue as error:
        raise InvalidSchedule(
            f"This schedule file cannot be read ({first_line_of(error)}). "
            "Choose a JSON, YAML or CSV file that senseapp wrote."
        ) from error


def _schedule_from_payload(payload: object) -> Schedule:
    if not isinstance(payload, Mapping) or payload.get("format") != _FORMAT_NAME:
        raise InvalidSchedule(
            f'A schedule file starts with "format: {_FORMAT_NAME}"; this one does not. '
            "Choose a JSON, YAML or CSV file that senseapp wrote."
        )
    version = payload.get("version")
    if not is_int(version) or version != _VERSION:
        raise InvalidSchedule(
            f"This schedule file has version {shown(version)}; this senseapp reads version {_VERSION}. "
            "Update senseapp, or export the schedule again."
        )
    achieved = mapping(payload["achieved"], "achieved")
    return Schedule(
        model=text(payload["model"], "model"),
        method=text(payload["method"], "method"),
        entries=tuple(_entry_of(mapping(row, "an entry of layers")) for row in items(payload["layers"], "layers")),
        budget=_budget_of(payload["budget"]),
        metric=text(payload["metric"], "metric"),
        predicted_damage=number(payload["predicted_damage"], "predicted_damage"),
        achieved={kind: number(value, f"{kind} of achieved") for kind, value in achieved.items()},
        notes=texts(payload["notes"], "notes"),
        file_notes=texts(payload.get("file_notes", []), "file_notes"),
    )


def _budget_of(found: object) -> ResourceBudget | None:
    if not found:
        return None
    told = mapping(found, "budget")
    return ResourceBudget(kind=told["kind"], target=number(told["target"], "target of budget"))


def _entry_of(row: Mapping[str, Any]) -> ScheduleEntry:
    layer, compression = text(row["layer"], "layer"), text(row["compression"], "compression")
    if compression not in (known := (*names(), _NONE)):
        raise InvalidSchedule(f"The compression of {layer} must be one of {', '.join(known)}, got {compression!r}.")
    if row["unit"] != (unit := _unit(compression)):
        raise InvalidSchedule(f"The level of {layer} must be given in {unit or 'no unit'}, got {shown(row['unit'])}.")
    level = number(row["level"], f"The level of {layer}")
    if compression == _NONE and level != 0:
        raise InvalidSchedule(f"{layer} is left alone (compression none), so its level must be 0, got {level}.")
    return ScheduleEntry(
        layer=layer,
        members=texts(row["members"], f"members of {layer}"),
        compression=compression,
        level=level if compression == _NONE else get(compression).scale.from_shown(level),
        predicted_damage=number(row["predicted_damage"], f"The predicted damage of {layer}"),
        locked=truth(row["locked"], f"locked of {layer}"),
    )


def _unit(compression: str) -> str:
    return "" if compression == _NONE else get(compression).scale.unit
