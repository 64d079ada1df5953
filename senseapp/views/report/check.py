"""A check as one HTML page that opens offline, runs no script and loads nothing."""

from __future__ import annotations

import base64
import math
import time

from senseapp.core.texts import plural
from senseapp.records.check import CheckReport, TensorDifference, percent
from senseapp.views.report.document import filled
from senseapp.views.report.tables import ReportTable, class_tables
from senseapp.views.words.check import (
    CHANGE_COLUMNS,
    OPERATOR_COLUMNS,
    PICTURE_COLUMNS,
    TENSOR_COLUMNS,
    change_rows,
    conditions,
    file_facts,
    measured_facts,
    operator_rows,
    picture_row,
    verdict,
)

_TEMPLATE = "check.html.jinja"
_SHOWN_BEFORE = 5  # tensors before the first that is apart
_FULL_BAR = 1.0  # difference at which a bar is full
_SIGNS = {"holds": "✓", "not shown": "?", "fails": "✗"}


def build_check_page(report: CheckReport) -> str:
    """Return the page as HTML; every text of people is escaped, and the policy allows no script."""
    answers = report.answers
    views = {
        "report": report,
        "verdict": verdict(report),
        "conditions": [(f"{_SIGNS[mark]} {title}: {mark}", reason) for title, mark, reason in conditions(report)],
        "facts": {
            "Reference": file_facts(report.reference),
            "Candidate": file_facts(report.candidate, size_ratio=report.size_ratio),
            "Measurement": measured_facts(report),
        },
        "changes": ReportTable(title="Metrics", columns=CHANGE_COLUMNS, rows=tuple(change_rows(report))),
        "operators": ReportTable(
            title="Operators", columns=OPERATOR_COLUMNS, rows=tuple(operator_rows(report.operators))
        ),
        "tensors": _tensors(report),
        "tensor_columns": TENSOR_COLUMNS,
        "tensors_left_out": plural(_left_out(report), "earlier tensor") if _left_out(report) else "",
        "classes": class_tables([answers]) if answers is not None else (),
        "pictures": [] if answers is None else [(_data_url(each.png), picture_row(each)) for each in answers.pictures],
        "picture_columns": PICTURE_COLUMNS,
        "notes": [*report.reference.notes, *report.candidate.notes, *report.notes],
    }
    return filled(_TEMPLATE, views, time.time())


def _tensors(report: CheckReport) -> list[dict[str, object]]:
    """Return a row per tensor, from shortly before the first that is apart, with the width of its bar in percent."""
    if report.divergence is None:
        return []
    first = report.divergence.first
    start = _left_out(report)
    return [
        {
            "name": each.name,
            "other": each.other,
            "operator": each.operator,
            "shape": " × ".join(map(str, each.shape)),
            "difference": percent(each.difference),
            "width": _width(each),
            "first": each is first,
        }
        for each in report.divergence.tensors[start:]
    ]


def _left_out(report: CheckReport) -> int:
    """Return how many tensors before the first that is apart are not listed."""
    first = report.divergence.first if report.divergence is not None else None
    if report.divergence is None or first is None:
        return 0
    return max(0, report.divergence.tensors.index(first) - _SHOWN_BEFORE)


def _width(tensor: TensorDifference) -> int:
    return 100 if not math.isfinite(tensor.difference) else round(100 * min(1.0, tensor.difference / _FULL_BAR))


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}" if png else ""
