"""Our own CSV: one row per layer, for spreadsheets.

Our own JSON: the whole schedule, read by ``senseapp apply`` and by any script.
Our own YAML: the same content as the JSON.
Read a schedule file that senseapp wrote (JSON, YAML or CSV).
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import yaml

from senseapp.core.csv_cells import csv_text, plain_cell
from senseapp.core.errors import InvalidSchedule, first_line_of
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, check_schedule
from senseapp.schedules.export.native import ROW_FIELDS, payload_of, row_of, schedule_from_payload, schedule_from_rows

_TRUTH = {"true": True, "false": False}


def _csv(schedule: Schedule, profile: ModelProfile) -> str:
    rows = (
        row_of(entry) | {"members": " ".join(entry.members), "locked": str(entry.locked).lower()}
        for entry in schedule.entries
    )
    return csv_text(ROW_FIELDS, ([row[name] for name in ROW_FIELDS] for row in rows))


def rows_from_csv(text: str) -> list[dict[str, Any]]:
    """Read the rows back, as :func:`senseapp.schedules.export.native.row_of` made them.

    Raises:
        InvalidSchedule: the header or a row is not of this form.
    """
    reader = csv.DictReader(io.StringIO(text))
    if tuple(reader.fieldnames or ()) != ROW_FIELDS:
        raise InvalidSchedule(
            f"A schedule CSV has the columns {','.join(ROW_FIELDS)}; found {','.join(reader.fieldnames or ('none',))}."
        )
    rows: list[dict[str, Any]] = []
    for row in reader:
        if None in row or None in row.values() or row["locked"].lower() not in _TRUTH:
            raise InvalidSchedule(
                f"Line {reader.line_num} of this CSV needs {len(ROW_FIELDS)} values, the last one true or false."
            )
        cells = {name: plain_cell(text) for name, text in row.items()}
        rows.append(cells | {"members": cells["members"].split(), "locked": _TRUTH[cells["locked"].lower()]})
    return rows


CSV = ExportFormat(
    name="csv",
    title="CSV",
    reader="Spreadsheets and senseapp apply: one row per layer, levels in percent or bits.",
    suffix=".csv",
    render=_csv,
    mixes=True,
)


def _json(schedule: Schedule, profile: ModelProfile) -> str:
    return json.dumps(payload_of(schedule), indent=2, allow_nan=False) + "\n"


JSON = ExportFormat(
    name="json",
    title="JSON",
    reader="senseapp apply and your own scripts: the whole schedule, levels in percent or bits.",
    suffix=".json",
    render=_json,
    mixes=True,
)


def _yaml(schedule: Schedule, profile: ModelProfile) -> str:
    return yaml.safe_dump(payload_of(schedule), sort_keys=False, allow_unicode=True)


YAML = ExportFormat(
    name="yaml",
    title="YAML",
    reader="senseapp apply and your own scripts: the same content as the JSON.",
    suffix=".yaml",
    render=_yaml,
    mixes=True,
)


def read_schedule(text: str | bytes, profile: ModelProfile) -> Schedule:
    """Read our JSON, YAML or CSV (recognised by its content) as a schedule for the model of ``profile``.

    Raises:
        InvalidSchedule: not such a file, made for another model (the first missing layers are named), or a value
            out of range.
    """
    try:
        content = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InvalidSchedule("A schedule file is text in UTF-8; this one is not. Choose another file.") from error
    schedule = _parse(content, profile)
    check_schedule(schedule, profile)
    return schedule


def _parse(content: str, profile: ModelProfile) -> Schedule:
    if content.lstrip().startswith(",".join(ROW_FIELDS[:2])):
        return schedule_from_rows(rows_from_csv(content), model=profile.title)
    return schedule_from_payload(_plain_values(content))


def _plain_values(content: str) -> object:
    try:
        values: object = json.loads(content) if content.lstrip().startswith("{") else yaml.safe_load(content)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InvalidSchedule(
            f"This schedule file cannot be read ({first_line_of(error)}). "
            "Choose a JSON, YAML or CSV file that senseapp wrote."
        ) from error
    return values
