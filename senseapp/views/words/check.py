"""A check in words, and the rows of its tables."""

import math
from collections.abc import Sequence

from senseapp.metrics import METRICS
from senseapp.records.answers import ChangedPicture
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

CONDITIONS = {"comparable": "Comparison", "loss": "Loss", "time": "Time", "processor": "Processor"}
CHANGE_COLUMNS = ("Metric", "Original", "Compressed", "Loss", "95 % interval")
OPERATOR_COLUMNS = ("Operator", "Original, ms", "Compressed, ms", "Original, nodes", "Compressed, nodes")
TENSOR_COLUMNS = ("Tensor", "Operator", "Shape", "Difference")
PICTURE_COLUMNS = ("Picture", "Label", "Original", "Compressed")


def conditions(report: CheckReport) -> list[tuple[str, str, str]]:
    """Return title, mark (``holds``, ``not shown`` or ``fails``) and reason of each condition of a check.

    That both files can be compared is the premise of all others, so it is listed only where it fails.
    """
    return [
        (CONDITIONS[each.name], "holds" if each.holds else "not shown" if each.undecided else "fails", each.sentence)
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
