"""A check in words: its rows, a Markdown summary for merge requests, and a JUnit file for build servers."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from xml.etree import ElementTree

from senseapp.core.markdown import Markdown, md
from senseapp.metrics import METRICS
from senseapp.records.answers import ChangedAnswers, ChangedPicture
from senseapp.records.check import (
    ALIKE,
    APART,
    SHARP,
    CheckedFile,
    CheckReport,
    LossBound,
    TensorDifference,
    TensorDivergence,
)
from senseapp.records.deployment import Median, OperatorShare
from senseapp.records.promise import rounded_up
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import markdown_table

_CONDITIONS = {"comparable": "Comparison", "loss": "Loss", "time": "Time", "processor": "Processor"}
CHANGE_COLUMNS = ("Metric", "Original", "Compressed", "Loss", "95 % interval")
OPERATOR_COLUMNS = ("Operator", "Original, ms", "Compressed, ms", "Original, nodes", "Compressed, nodes")
TENSOR_COLUMNS = ("Tensor", "Operator", "Shape", "Difference")
PICTURE_COLUMNS = ("Picture", "Label", "Original", "Compressed")
_MOST_CLASSES = 10  # rows of a summary
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def conditions(report: CheckReport) -> list[tuple[str, str, str]]:
    """Return title, mark (``holds``, ``not shown`` or ``fails``) and reason of each condition of a check.

    That both files can be compared is the premise of all others, so it is listed only where it fails.
    """
    return [
        (_CONDITIONS[each.name], "holds" if each.holds else "not shown" if each.undecided else "fails", each.sentence)
        for each in report.limits
        if each.name != "comparable" or not each.holds
    ]


def file_facts(side: CheckedFile, *, original: CheckedFile | None = None) -> dict[str, str]:
    """Return the facts of one side, by their name; of the candidate beside the ``original`` its relative size too."""
    size = fmt.bytes_size(side.file_bytes)
    if original is not None and original.file_bytes:
        size += f", {side.file_bytes / original.file_bytes:.2f} times the original"
    facts = {
        "File": side.name,
        "Kind": side.kind,
        "Size": size,
        "Input": side.takes,
        "Output": side.returns,
        "Time of a call": "" if side.seconds is None else milliseconds(side.seconds),
    }
    return {name: value for name, value in facts.items() if value}


def measured_facts(report: CheckReport) -> dict[str, str]:
    """Return on what and how both were measured."""
    spec, bound = report.spec, report.bound
    labels = "with labels" if report.labelled else "without labels"
    facts = {
        "Images": f"{spec.data.title}, {report.images} {labels}" if report.images else spec.data.title,
        **({"Prepared": report.preparation} if report.reading is None else report.reading.facts),
        "Bound": "" if bound is None else bound_text(bound),
        "Time ratio": "" if report.time_ratio is None else report.time_ratio.times_text,
        "Timed on": f"{fmt.plural(spec.threads, 'thread')}, {fmt.plural(spec.batch, 'image')} a call",
        "Machine": report.machine,
    }
    return {name: value for name, value in facts.items() if value}


def milliseconds(seconds: Median) -> str:
    """Return a time with its interval: ``3.21 ms (3.1 to 3.4)``."""
    value, low, high = (f"{1000 * each:.3g}" for each in (seconds.value, seconds.low, seconds.high))
    return f"{value} ms ({low} to {high})"


def bound_text(bound: LossBound) -> str:
    """Return the bound of the loss and what it rests on."""
    metric = METRICS[bound.metric]
    kind = "guaranteed" if bound.guaranteed else "approximate"
    return (
        f"{metric.change_inside} at most {rounded_up(metric, bound.upper)} with {100 * bound.confidence:.0f} % "
        f"certainty on new images like these, for this file alone ({kind}: {bound.how})"
    )


def change_rows(report: CheckReport) -> list[tuple[str, ...]]:
    """Return a row per metric, the one that is judged first."""
    rows: list[tuple[str, ...]] = []
    places = list(METRICS)
    for change in sorted(report.changes, key=lambda each: (each.metric != report.metric, places.index(each.metric))):
        metric = METRICS[change.metric]
        before, after = (metric.value_text(value) for value in (change.baseline, change.value))
        interval = metric.interval_text(change.ci_low, change.ci_high) if change.has_interval else ""
        if (bound := report.bound) is not None and metric.name == bound.metric:  # said once: not two ends of one loss
            interval = f"at most {rounded_up(metric, bound.upper)}"
        lost = metric.change_text(change.delta)
        rows.append((metric.label, before if metric.additive else "–", after, lost, interval))
    return rows


def tensor_rows(tensors: Sequence[TensorDifference]) -> list[tuple[str, ...]]:
    """Return a row per tensor, in their order."""
    names = (each.name + (f" (there {each.other})" if each.other else "") for each in tensors)
    return [
        (name, each.operator, fmt.shape(each.shape), _percent(each.difference))
        for name, each in zip(names, tensors, strict=True)
    ]


def divergence_sentence(found: TensorDivergence) -> str:
    """Return where two networks part, with the differences before and there."""
    if not found.tensors:
        return "No tensor of one could be matched to a tensor of the other."
    what = "layer" if found.matched_by == "layer" else "tensor"
    largest = max(found.tensors, key=lambda each: each.difference)
    first = found.first
    if first is None and largest.difference < ALIKE:
        return f"No {what} of {len(found.tensors)} differs by as much as {_percent(ALIKE)}."
    if first is None:
        return (
            f"No {what} of {len(found.tensors)} differs by more than {_percent(largest.difference)}, "
            f"at {_named(largest)}."
        )
    place = found.tensors.index(first)
    before = max((each.difference for each in found.tensors[:place]), default=0.0)
    if place == 0:
        return (
            f"They differ from the first {what} on, {_named(first)}, by "
            f"{_percent(first.difference)} there and at most {_percent(largest.difference)} anywhere."
        )
    if first.difference >= SHARP * max(before, ALIKE):
        return (
            f"They part at {what} {_named(first)}: {_percent(first.difference)}, after "
            f"{f'at most {_percent(before)}' if before else 'no difference'} in the {place} before it, the last of "
            f"them “{found.tensors[place - 1].name}”."
        )
    above = f"{what} {_named(first)}, {_percent(first.difference)}"
    return f"Differences grow gradually: the first above {_percent(APART)} is {above}."


def _named(tensor: TensorDifference) -> str:
    """Return its name with what computes it: ``“boxes” (Concat “/head/Concat”)``."""
    node = f" “{tensor.node}”" if tensor.node and tensor.node != tensor.name else ""
    return f"“{tensor.name}” ({tensor.operator}{node})"


def _percent(share: float) -> str:
    """Return a relative difference as text.

    >>> _percent(0.0123), _percent(3.0), _percent(float("inf")), _percent(0.00001)
    ('1.2 %', '300 %', 'not finite', '< 0.1 %')
    """
    if not math.isfinite(share):
        return "not finite"
    if 0 < share < ALIKE:
        return "< 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


def operator_rows(operators: Sequence[OperatorShare]) -> list[tuple[str, ...]]:
    """Return a row per kind of operator: what all of that kind take in a call of each file; the slowest first."""
    return [
        (
            each.kind + (" (converts)" if each.is_border else ""),
            f"{1000 * each.original_seconds:.3f}",
            f"{1000 * each.seconds:.3f}",
            str(each.original_calls),
            str(each.calls),
        )
        for each in operators
    ]


def picture_row(picture: ChangedPicture) -> tuple[str, ...]:
    """Return one picture that is answered differently."""
    if picture.caption:
        return picture.name, picture.label, "", picture.caption
    sides = ((picture.before, picture.sure_before), (picture.after, picture.sure_after))
    return (picture.name, picture.label, *(f"{text} ({fmt.percent(sure)})" for text, sure in sides))


def all_notes(report: CheckReport) -> list[str]:
    """Return the notes on both files and on the check."""
    return [*report.reference.notes, *report.candidate.notes, *report.notes]


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
            suite, "testcase", {"classname": "senseapp.check", "name": _CONDITIONS[limit.name], "time": "0"}
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
