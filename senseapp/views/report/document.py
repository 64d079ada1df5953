"""One run as one HTML file: interactive charts, tables and settings; it opens offline and asks for nothing."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

from senseapp import __version__
from senseapp.metrics import METRICS
from senseapp.prove.decision import usual_decision
from senseapp.server.leaderboard import shown_metric
from senseapp.views.charts.axes import LANGUAGE
from senseapp.views.frames.results import measurement_frame
from senseapp.views.report.figures import ChartData, ReportContents, result_figures
from senseapp.views.report.tables import (
    apart_table,
    class_tables,
    files_table,
    histogram_figures,
    layer_tables,
    schedule_sections,
    unlisted_table,
)
from senseapp.views.words.wording import (
    baselines_of,
    caveat_of,
    environment_of,
    image_facts,
    model_facts,
    notes_of,
    provenance_text,
    settings_of,
)

_FOLDER = Path(__file__).parent
_TEMPLATE = "report.html.jinja"
_LIBRARY = "window.vegaEmbed = vegaEmbed;"


def build_report(contents: ReportContents) -> str:
    """Return the report as HTML.

    All texts of people (titles, layer names, class names, notes) are escaped; scripts run only if they are the
    report's own, by their hash, and the page may load nothing from anywhere.
    """
    result, data = contents.result, ChartData()
    decided = contents.decided or usual_decision(contents.candidates, result.spec.goal)
    metric = METRICS[shown_metric(result)]
    frame_of = cache(partial(measurement_frame, result))
    tables, left_out = layer_tables(result, frame_of)
    views: dict[str, Any] = {
        "contents": contents,
        "result": result,
        "metric": metric,
        "provenance": provenance_text(result),
        "caveat": caveat_of(result),
        "notes": notes_of(result),
        "facts": {
            "Model": model_facts(result),
            "Images": image_facts(result),
            "Settings": settings_of(result),
            "Environment": environment_of(result) or {"Versions": "Unknown (imported figures)"},
        },
        "baselines": baselines_of(result),
        "figures": result_figures(result, metric, data, frame_of(metric.name)),
        "schedules": schedule_sections(contents.schedules, contents.validations, result, data),
        "histograms": histogram_figures(contents.histograms, data),
        "classes": class_tables(contents.changed),
        "decided": decided,
        "files": files_table(contents.candidates, decided),
        "tables": tables,
        "left_out": left_out,
        "apart": apart_table(result),
        "unlisted": unlisted_table(result),
        "made": datetime.fromtimestamp(contents.made_seconds, UTC).strftime("%-d %B %Y, %H:%M UTC"),
        "version": __version__,
    }
    return environment().get_template(_TEMPLATE).render(views | {"charts": data.packed()} | page_parts())


@cache
def environment() -> jinja2.Environment:
    """Return what fills in the pages of this folder; every text is escaped."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def style() -> Markup:
    """Return the style of pages that open offline."""
    return Markup((_FOLDER / "report.css").read_text("utf-8"))


@cache
def page_parts() -> dict[str, Markup]:
    """Return the parts that every report shares: style, scripts, and the policy that allows these scripts alone."""
    library = vl_convert.javascript_bundle(_LIBRARY, vl_version=LANGUAGE)
    script = (_FOLDER / "report.js").read_text("utf-8")
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in (library, script))
    policy = (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; "  # Vega compiles its expressions
        "style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'; base-uri 'none'"
    )
    return {
        "style": style(),
        "library": Markup(library),
        "script": Markup(script),
        "policy": Markup(policy),
    }


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
