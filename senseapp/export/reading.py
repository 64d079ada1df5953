"""Read a schedule file that senseapp wrote (JSON, YAML or CSV)."""

from __future__ import annotations

import json

import yaml

from senseapp.errors import InvalidSchedule, first_line_of
from senseapp.export.base import check_schedule
from senseapp.export.csv_format import rows_from_csv
from senseapp.export.native import ROW_FIELDS, schedule_from_payload, schedule_from_rows
from senseapp.results import ModelProfile, Schedule


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
