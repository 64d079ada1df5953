"""Our own CSV: one row per layer, for spreadsheets."""

from __future__ import annotations

import csv
import io
from typing import Any

from senseapp.errors import InvalidSchedule
from senseapp.export.base import ExportFormat
from senseapp.export.native import ROW_FIELDS, row_of
from senseapp.results import ModelProfile, Schedule

_TRUTH = {"true": True, "false": False}


def _render(schedule: Schedule, profile: ModelProfile) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ROW_FIELDS, lineterminator="\n")
    writer.writeheader()
    for entry in schedule.entries:
        row = row_of(entry)
        writer.writerow(row | {"members": " ".join(entry.members), "locked": str(entry.locked).lower()})
    return stream.getvalue()


def rows_from_csv(text: str) -> list[dict[str, Any]]:
    """Read the rows back, as :func:`senseapp.export.native.row_of` made them.

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
        rows.append(row | {"members": row["members"].split(), "locked": _TRUTH[row["locked"].lower()]})
    return rows


CSV = ExportFormat(
    name="csv",
    title="CSV",
    reader="Spreadsheets and senseapp apply: one row per layer, levels in percent or bits.",
    suffix=".csv",
    render=_render,
    mixes=True,
)
