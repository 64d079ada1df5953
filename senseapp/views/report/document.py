"""A run, or a check, as one HTML file that opens offline, runs no script and loads nothing."""

import base64
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from senseapp import __version__
from senseapp.prove.decision import Decision, usual_decision
from senseapp.records.answers import ChangedAnswers
from senseapp.records.candidate import Candidate
from senseapp.records.check import CheckReport
from senseapp.records.headline import headline, headline_level, shown_metric
from senseapp.records.measurement import RunResult
from senseapp.records.resolution import baseline_warning, everyday
from senseapp.records.schedule import Schedule, ValidationResult
from senseapp.views.charts.axes import picture_svg
from senseapp.views.charts.layers import drop_domain, marked, sensitivity_bars
from senseapp.views.frames.results import at_level, measurement_frame
from senseapp.views.palette import fragility_legend
from senseapp.views.report import tables
from senseapp.views.words import check, wording

_FOLDER = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
_MOST_BARS = 60  # two screens; the table has all layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContents:
    """A run and everything that was made of it: unproven schedules, proofs, files, and answers that they change.

    ``decided`` is what the Results page shows; None for the usual decision of the run. ``made_seconds`` is when the
    report is made, in Unix time.
    """

    title: str
    result: RunResult
    schedules: tuple[Schedule, ...] = ()
    validations: tuple[ValidationResult, ...] = ()
    changed: tuple[ChangedAnswers, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    decided: Decision | None = None
    finished: bool = True
    made_seconds: float = field(default_factory=time.time)


def build_report(contents: ReportContents) -> str:
    """Return the report as HTML.

    All texts of people (titles, layer names, class names, notes) are escaped, and no script runs.
    """
    result = contents.result
    decided = contents.decided or usual_decision(contents.candidates, result.spec.goal, result.spec.target)
    views: dict[str, Any] = {
        "contents": contents,
        "finding": headline(result),
        "warning": baseline_warning(result),
        "provenance": wording.evidence_text(result),
        "caveat": wording.caveat_of(result),
        "notes": wording.notes_of(result),
        "facts": {
            "Model": wording.model_facts(result) | wording.baselines_of(result),
            "Images": wording.image_facts(result),
            "Settings": wording.settings_of(result),
            "Environment": wording.environment_of(result) or {"Versions": "Unknown (imported figures)"},
        },
        "chart": _chart(result),
        "schedules": tables.schedule_sections(contents.schedules, contents.validations, result),
        "classes": tables.class_tables(contents.changed),
        "decided": decided,
        "files": tables.files_table(contents.candidates, decided),
        "table": tables.layer_table(result, shown_metric(result)),
        "apart": tables.apart_table(result),
    }
    return _filled("report.html.jinja", views, contents.made_seconds)


def _chart(result: RunResult) -> dict[str, Any] | None:
    """Return title, words and image of the bars of the most fragile layers at the level of the headline, if any."""
    metric, level = everyday(result, shown_metric(result)), headline_level(result)
    rows = at_level(measurement_frame(result, metric.name, level=level), level, by_sensitivity=True)
    if rows.empty:
        return None
    shown = rows.head(_MOST_BARS)
    domain = drop_domain(shown, metric, num_classes=result.profile.num_classes)
    bars = sensitivity_bars(marked(shown), metric, x_domain=domain)
    return {
        "title": f"What does each layer lose alone at {result.compression.scale.text(level)}?",
        "has_intervals": shown["ranked"].any(),
        "words": f"Most fragile: {'; '.join(map(str, rows['description'].head(3)))}.",
        "image": _data_url("svg+xml", picture_svg(bars, title="", legend=fragility_legend(metric)).encode()),
    }


def _data_url(kind: str, content: bytes) -> str:
    """Return a picture as the address of an image, in which no script runs, whatever a layer is called."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _filled(template: str, views: dict[str, Any], made_seconds: float) -> str:
    """Return a page of this folder with ``views``, made at that Unix time."""
    made = datetime.fromtimestamp(made_seconds, UTC).strftime("%-d %B %Y, %H:%M UTC")
    return _environment().get_template(template).render(views | {"made": made})


@cache
def _environment() -> jinja2.Environment:
    """Return what fills in the pages of this folder; every text is escaped."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup((_FOLDER / "report.css").read_text("utf-8"))
    found.globals |= {"version": __version__, "style": style, "policy": Markup(_POLICY)}
    return found


_SIGNS = {"holds": "✓", "not shown": "?", "fails": "✗"}


def build_check_page(report: CheckReport) -> str:
    """Return the page as HTML; every text of people is escaped, and the policy allows no script."""
    answers = report.answers
    views = {
        "report": report,
        "verdict": report.verdict,
        "conditions": [(f"{_SIGNS[mark]} {title}: {mark}", reason) for title, mark, reason in check.conditions(report)],
        "facts": {
            "Original": check.file_facts(report.reference),
            "Compressed file": check.file_facts(report.candidate, original=report.reference),
            "Measurement": check.measured_facts(report),
        },
        "changes": tables.ReportTable(
            title="Metrics", columns=check.CHANGE_COLUMNS, rows=tuple(check.change_rows(report))
        ),
        "operators": tables.ReportTable(
            title="Operators", columns=check.OPERATOR_COLUMNS, rows=tuple(check.operator_rows(report.operators))
        ),
        "parting": "" if report.divergence is None else check.divergence_sentence(report.divergence),
        "tensors": _tensors(report),
        "tensor_columns": check.TENSOR_COLUMNS,
        "classes": tables.class_tables([answers]) if answers is not None else (),
        "pictures": [
            (_data_url("png", each.png) if each.png else "", check.picture_row(each))
            for each in (answers.pictures if answers is not None else ())
        ],
        "picture_columns": check.PICTURE_COLUMNS,
        "notes": check.all_notes(report),
    }
    return _filled("check.html.jinja", views, time.time())


def _tensors(report: CheckReport) -> list[dict[str, object]]:
    """Return a row per tensor, with the width of its bar in percent, which is full where all of it differs."""
    if report.divergence is None:
        return []
    return [
        {
            "cells": row,
            "width": round(100 * min(1.0, each.difference)),  # an infinite one fills it
            "first": each is report.divergence.first,
        }
        for each, row in zip(report.divergence.tensors, check.tensor_rows(report.divergence.tensors), strict=True)
    ]
