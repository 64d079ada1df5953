"""A check as one HTML page that opens offline, runs no script and loads nothing."""

from __future__ import annotations

import base64
import math
import time

from senseapp.records.check import CheckReport
from senseapp.views.report.document import filled
from senseapp.views.report.tables import ReportTable, class_tables
from senseapp.views.words.check import (
    CHANGE_COLUMNS,
    OPERATOR_COLUMNS,
    PICTURE_COLUMNS,
    TENSOR_COLUMNS,
    change_rows,
    conditions,
    divergence_sentence,
    file_facts,
    measured_facts,
    operator_rows,
    picture_row,
    tensor_rows,
    verdict,
)

_TEMPLATE = "check.html.jinja"
_SIGNS = {"holds": "✓", "not shown": "?", "fails": "✗"}


def build_check_page(report: CheckReport) -> str:
    """Return the page as HTML; every text of people is escaped, and the policy allows no script."""
    answers = report.answers
    views = {
        "report": report,
        "verdict": verdict(report),
        "conditions": [(f"{_SIGNS[mark]} {title}: {mark}", reason) for title, mark, reason in conditions(report)],
        "facts": {
            "Original": file_facts(report.reference),
            "Compressed file": file_facts(report.candidate, size_ratio=report.size_ratio),
            "Measurement": measured_facts(report),
        },
        "changes": ReportTable(title="Metrics", columns=CHANGE_COLUMNS, rows=tuple(change_rows(report))),
        "operators": ReportTable(
            title="Operators", columns=OPERATOR_COLUMNS, rows=tuple(operator_rows(report.operators))
        ),
        "parting": "" if report.divergence is None else divergence_sentence(report.divergence),
        "tensors": _tensors(report),
        "tensor_columns": TENSOR_COLUMNS,
        "classes": class_tables([answers]) if answers is not None else (),
        "pictures": [
            (f"data:image/png;base64,{base64.b64encode(each.png).decode()}" if each.png else "", picture_row(each))
            for each in (answers.pictures if answers is not None else ())
        ],
        "picture_columns": PICTURE_COLUMNS,
        "notes": [*report.reference.notes, *report.candidate.notes, *report.notes],
    }
    return filled(_TEMPLATE, views, time.time())


def _tensors(report: CheckReport) -> list[dict[str, object]]:
    """Return a row per tensor, with the width of its bar in percent, which is full where all of it differs."""
    if report.divergence is None:
        return []
    return [
        {
            "cells": row,
            "width": round(100 * min(1.0, each.difference)) if math.isfinite(each.difference) else 100,
            "first": each is report.divergence.first,
        }
        for each, row in zip(report.divergence.tensors, tensor_rows(report.divergence.tensors), strict=True)
    ]
