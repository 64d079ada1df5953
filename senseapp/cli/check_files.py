"""Files that the command ``check`` writes: JSON, a Markdown summary for merge requests, JUnit for build servers."""

import math
import re
from collections.abc import Iterator
from dataclasses import asdict
from xml.etree import ElementTree

from senseapp.core.markdown import Markdown, md
from senseapp.records.answers import ChangedAnswers
from senseapp.records.check import CheckReport
from senseapp.views.words import format as fmt
from senseapp.views.words.check import (
    CHANGE_COLUMNS,
    CONDITIONS,
    OPERATOR_COLUMNS,
    PICTURE_COLUMNS,
    all_notes,
    bound_text,
    change_rows,
    conditions,
    divergence_sentence,
    file_facts,
    measured_facts,
    operator_rows,
    picture_row,
)
from senseapp.views.words.wording import markdown_table

_MOST_CLASSES = 10  # rows of a summary
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def json_of(report: CheckReport) -> dict[str, object]:
    """Return the verdict and its figures for programs, without pictures."""
    bound, ratio, first = report.bound, report.time_ratio, report.divergence.first if report.divergence else None
    return {
        "holds": report.holds,
        "headline": report.headline,
        "limits": [asdict(each) for each in report.limits],
        "findings": list(report.findings),
        "images": report.images,
        "metric": report.metric,
        "loss": None if bound is None else _figures(bound, "delta")["delta"],
        "loss_upper": None if bound is None else _figures(bound, "upper")["upper"],
        "loss_allowed": None if bound is None else bound.allowed,
        "confidence": None if bound is None else bound.confidence,
        "guaranteed": None if bound is None else bound.guaranteed,
        "changes": {each.metric: _figures(each, "value", "delta", "ci_low", "ci_high") for each in report.changes},
        "time_ratio": None if ratio is None else _figures(ratio, "value", "low", "high"),
        "ms": {
            name: None if side.seconds is None else 1000 * side.seconds.value
            for name, side in (("reference", report.reference), ("candidate", report.candidate))
        },
        "file_bytes": {"reference": report.reference.file_bytes, "candidate": report.candidate.file_bytes},
        "parts_at": None if first is None else first.name,
        "parting": "" if report.divergence is None else divergence_sentence(report.divergence),
        "operators": [
            {
                "kind": each.kind,
                "reference_ms": 1000 * each.original_seconds,
                "candidate_ms": 1000 * each.seconds,
                "reference_nodes": each.original_calls,
                "candidate_nodes": each.calls,
                "converts": each.is_border,
            }
            for each in report.operators
        ],
        "notes": all_notes(report),
        "machine": report.machine,
    }


def _figures(record: object, *names: str) -> dict[str, float | None]:
    """Return some figures of a record, those that JSON cannot write as None."""
    found = {name: float(getattr(record, name)) for name in names}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


# ---- a merge request


def markdown_summary(report: CheckReport) -> str:
    """Return the check as GitHub's Markdown: verdict, conditions, figures, classes and where tensors part."""
    parts = [
        md("## {}: {}", report.verdict, report.spec.title),
        md("{}", report.headline),
        markdown_table(("Condition", "", "Why"), conditions(report)),
        *(md("- {}", each) for each in report.findings),
    ]
    both = [file_facts(side) for side in (report.reference, report.candidate)]
    sides = [(name, *(each.get(name, "") for each in both)) for name in ("Size", "Time of a call")]
    if report.time_ratio is not None:
        sides.append(("Time ratio", "1", report.time_ratio.times_text))
    if report.bound is not None:
        parts += [
            markdown_table(("", "Original", "Compressed"), sides),
            markdown_table(CHANGE_COLUMNS, change_rows(report)),
            md("Largest loss to expect: {}.", bound_text(report.bound)),
        ]
    if report.operators:
        parts += [
            md("<details><summary>Where the time goes</summary>"),
            markdown_table(OPERATOR_COLUMNS, operator_rows(report.operators)),
            md("</details>"),
        ]
    if report.divergence is not None:
        parts.append(md("Inside: {}", divergence_sentence(report.divergence)))
    if report.answers is not None:
        parts += list(_answers(report.answers))
    if notes := all_notes(report):
        parts += [md("<details><summary>Notes</summary>"), md("\n").join(md("- {}", note) for note in notes)]
        parts.append(md("</details>"))
    return "\n\n".join(parts) + "\n"


def _answers(found: ChangedAnswers) -> Iterator[Markdown]:
    yield md("{}", found.sentence)
    worse = [each for each in found.classes if each.drop > 0]
    if worse:
        rows = [
            (each.name, str(each.num_images), f"{fmt.points(each.drop)} points", fmt.points(each.low, each.high))
            for each in worse[:_MOST_CLASSES]
        ]  # fmt: skip
        yield markdown_table(("Class", "Images", "Drop", "Interval, all classes together"), rows)
        if len(worse) > _MOST_CLASSES:
            yield md("And {} more.", len(worse) - _MOST_CLASSES)
    if found.pictures:
        yield markdown_table(PICTURE_COLUMNS, [picture_row(each) for each in found.pictures])


# ---- a build server


def junit_xml(report: CheckReport) -> str:
    """Return the check as a JUnit file, a test for each condition; not shown to hold is a failure of another type."""
    suite = ElementTree.Element(
        "testsuite",
        {"name": _xml(f"senseapp check: {report.spec.title}"), "tests": str(len(report.limits)),
         "failures": str(sum(not each.holds for each in report.limits)), "errors": "0", "skipped": "0"},
    )  # fmt: skip
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in {**measured_facts(report), "Findings": " ".join(report.findings)}.items():
        if value:
            ElementTree.SubElement(properties, "property", {"name": name, "value": _xml(value)})
    for limit in report.limits:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "senseapp.check", "name": CONDITIONS[limit.name], "time": "0"}
        )
        if not limit.holds:
            kind = "undecided" if limit.undecided else "failed"
            failure = ElementTree.SubElement(case, "failure", {"type": kind, "message": _xml(limit.sentence)})
            inside = () if report.divergence is None else (divergence_sentence(report.divergence),)
            failure.text = _xml("\n".join((limit.sentence, *report.findings, *inside)))
        else:
            ElementTree.SubElement(case, "system-out").text = _xml(limit.sentence)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _xml(text: str) -> str:
    """Return a text without characters that no XML file may hold."""
    return _NOT_IN_XML.sub("\ufffd", text)
